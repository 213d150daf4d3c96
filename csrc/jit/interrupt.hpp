// Ctrl-C. Long waits of the core call interruption_point(), which calls the hook that Python installs. Without a hook (C++
// programs) nothing here has an effect, and SIGINT keeps its own action.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>

namespace gdn_cuda::jit {

constexpr std::chrono::milliseconds kInterruptPoll{50};  // longest time between two interruption points

using InterruptHook = std::function<void()>;  // throws to end the wait; called without locks that it may need

void set_interrupt_hook(InterruptHook hook);
bool interruptible();

// Rethrows from the hook; throws an Error if this thread was cancelled, or is now in a child that the hook forked. Between two
// calls of the hook pass some milliseconds, since it takes the GIL.
void interruption_point();
// Calls the hook without that delay; for the beginning and the end of a long call.
void ask_for_interruption();

// During its lifetime, setting `*flag` ends the waits of this thread: for pool threads, which no signal reaches.
class CancelledBy {
  public:
    explicit CancelledBy(const std::atomic<bool>* flag);
    ~CancelledBy();
    CancelledBy(const CancelledBy&) = delete;
    CancelledBy& operator=(const CancelledBy&) = delete;

  private:
    const std::atomic<bool>* before_;
};

// Runs `work`, which cannot be stopped, on its own thread while the caller waits, and rethrows its exception. After an
// interrupt `work` continues without its caller, so it must own all that it uses. If nothing can interrupt, it runs on the
// caller's thread.
void run_interruptibly(std::function<void()> work);
// Runs `work`, which owns all that it uses and throws nothing, on a thread of its own that nobody waits for.
void run_in_background(std::function<void()> work);
bool in_background();  // whether this thread is one of those

}  // namespace gdn_cuda::jit
