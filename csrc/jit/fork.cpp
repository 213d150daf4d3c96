#include "fork.hpp"

#include <pthread.h>

#include <vector>

#include "errors.hpp"
#include "interrupt.hpp"

namespace gdn_cuda::jit {
namespace {

void before_fork();
void in_parent();
void in_child();

struct Forks {
    Forks() {
        if (::pthread_atfork(before_fork, in_parent, in_child) != 0) throw Error("pthread_atfork: out of memory");
    }

    std::mutex mutex;
    std::vector<std::function<void()>> resets;  // guarded by `mutex`
    std::atomic<unsigned> generation{0};
};

Forks& forks() {
    static auto* kept = new Forks;  // first used while the library is loaded
    return *kept;
}

void before_fork() {
    forks().mutex.lock();
}

void in_parent() {
    forks().mutex.unlock();
}

void in_child() {
    Forks& all = forks();
    ++all.generation;
    all.mutex.unlock();
    for (const auto& reset : all.resets) reset();
}

}  // namespace

std::unique_lock<std::mutex> fork_lock() {
    return std::unique_lock(forks().mutex);
}

unsigned fork_generation() {
    return forks().generation.load(std::memory_order_relaxed);
}

void in_forked_child(std::function<void()> reset) {
    const auto lock = fork_lock();
    forks().resets.push_back(std::move(reset));
}

void Mutex::lock() {
    if (!mutex_.try_lock()) {
        if (owner_.load() == std::this_thread::get_id())
            throw Error(
                "a signal handler called gdn_cuda while the interrupted thread held a lock of it; call it outside of the "
                "handler");
        while (!mutex_.try_lock_for(kInterruptPoll)) interruption_point();
    }
    owner_.store(std::this_thread::get_id());
}

void Mutex::unlock() {
    owner_.store(std::thread::id{});
    mutex_.unlock();
}

bool Mutex::lost() {
    if (owner_.load() == std::this_thread::get_id()) return false;
    if (!mutex_.try_lock()) return true;
    mutex_.unlock();
    return false;
}

}  // namespace gdn_cuda::jit
