#include "interrupt.hpp"

#include <pthread.h>
#include <signal.h>

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>

#include "errors.hpp"
#include "files.hpp"
#include "fork.hpp"
#include "text.hpp"

namespace gdn_cuda::jit {
namespace {

auto& current_hook = *new std::shared_ptr<const InterruptHook>;  // guarded by fork_lock(); never destroyed: threads may use it
std::atomic<bool> have_hook{false};
thread_local const std::atomic<bool>* cancelled = nullptr;
thread_local bool is_background = false;

using clock = std::chrono::steady_clock;
thread_local clock::time_point asked{};  // when this thread last called the hook

std::shared_ptr<const InterruptHook> hook() {
    const auto lock = fork_lock();
    return current_hook;
}

struct Task {
    explicit Task(std::function<void()> given) : work(std::move(given)) {}

    void run() {
        std::exception_ptr thrown;
        try {
            work();
        } catch (...) {
            thrown = std::current_exception();
        }
        std::lock_guard lock(mutex);
        error = thrown;
        done = true;
        changed.notify_all();
    }

    std::function<void()> work;
    std::mutex mutex;
    std::condition_variable changed;
    std::exception_ptr error;
    bool done = false;
};

void* thread_main(void* argument) {
    const std::unique_ptr<std::shared_ptr<Task>> task(static_cast<std::shared_ptr<Task>*>(argument));
    (*task)->run();
    return nullptr;
}

void start_thread(const std::shared_ptr<Task>& task) {
    constexpr std::size_t kStack = std::size_t{16} << 20;  // compilers recurse; main threads have 8 MiB or more
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, kStack);
    sigset_t all, before;  // the host's threads handle signals
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    auto argument = std::make_unique<std::shared_ptr<Task>>(task);
    pthread_t thread;
    const int error = ::pthread_create(&thread, &attributes, thread_main, argument.get());
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_attr_destroy(&attributes);
    if (error != 0) throw Error(fmt::format("cannot start a thread for the compiler: {}", errno_text(error)));
    [[maybe_unused]] const auto* now_the_threads = argument.release();
}

}  // namespace

void set_interrupt_hook(InterruptHook given) {
    auto shared = given ? std::make_shared<const InterruptHook>(std::move(given)) : nullptr;
    have_hook.store(shared != nullptr);
    const auto lock = fork_lock();
    current_hook.swap(shared);
}

bool interruptible() {
    return have_hook.load(std::memory_order_relaxed) || cancelled != nullptr;
}

void interruption_point() {
    if (clock::now() - asked >= kInterruptPoll / 2) ask_for_interruption();
}

void ask_for_interruption() {
    if (cancelled != nullptr && cancelled->load()) throw Error("cancelled");
    if (!have_hook.load(std::memory_order_relaxed)) return;
    asked = clock::now();
    const unsigned generation = fork_generation();
    if (const auto ask = hook()) (*ask)();
    if (fork_generation() != generation)
        throw Error("a signal handler forked this process while a kernel was compiled; the compile goes on in the parent only");
}

CancelledBy::CancelledBy(const std::atomic<bool>* flag) : before_(std::exchange(cancelled, flag)) {}

CancelledBy::~CancelledBy() {
    cancelled = before_;
}

void run_interruptibly(std::function<void()> work) {
    if (!interruptible()) return work();
    const auto task = std::make_shared<Task>(std::move(work));
    start_thread(task);
    std::unique_lock lock(task->mutex);
    while (!task->changed.wait_for(lock, kInterruptPoll, [&] { return task->done; })) {
        lock.unlock();
        interruption_point();
        lock.lock();
    }
    if (task->error) std::rethrow_exception(task->error);
}

void run_in_background(std::function<void()> work) {
    start_thread(std::make_shared<Task>([work = std::move(work)] {
        is_background = true;
        work();
    }));
}

bool in_background() {
    return is_background;
}

}  // namespace gdn_cuda::jit
