// Keeps the host's handlers of SIGINT and SIGTERM while NVRTC compiles. In a process's first compile its front end installs its
// own while it parses, half a second with CUTLASS's headers; they end the process, or crash it when a thread of the host runs
// them.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

namespace gdn_cuda::jit {

// While it lives, handlers of one library are replaced by the host's within a millisecond.
class HostSignals {
  public:
    explicit HostSignals(const void* in_library);  // an address in the library
    ~HostSignals();
    HostSignals(const HostSignals&) = delete;
    HostSignals& operator=(const HostSignals&) = delete;

  private:
    void watch();
    void put_back() const;

    const void* library_;  // its load address
    std::mutex mutex_;
    std::condition_variable changed_;
    bool done_ = false;
    std::thread watcher_;
};

}  // namespace gdn_cuda::jit
