// Ctrl-C. A long wait of the core calls interruption_point(), which asks the hook that Python installs whether to go on.
// Without a hook (C++ programs) the signal's own action stands, and nothing here does anything.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>

namespace gdn_cuda::jit {

constexpr std::chrono::milliseconds kInterruptPoll{50};  // how long a wait may last between two interruption points

using InterruptHook = std::function<void()>;  // throws to end the wait; called without any lock that the hook could want

void set_interrupt_hook(InterruptHook hook);
bool interruptible();

// Throws what the hook throws; an Error when this thread was cancelled, or when it now runs in a child that the hook forked.
void interruption_point();

// While it lives, a true `*flag` ends the waits of this thread: for pools, whose threads hear no signal.
class CancelledBy {
  public:
    explicit CancelledBy(const std::atomic<bool>* flag);
    ~CancelledBy();
    CancelledBy(const CancelledBy&) = delete;
    CancelledBy& operator=(const CancelledBy&) = delete;

  private:
    const std::atomic<bool>* before_;
};

// Runs `work`, which cannot be stopped, on a thread of its own while the caller waits; what it throws is thrown here. After an
// interrupt `work` goes on without its caller, so it owns all that it uses. Where nothing can interrupt, the caller runs it.
void run_interruptibly(std::function<void()> work);

}  // namespace gdn_cuda::jit
