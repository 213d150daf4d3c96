#include "host_signals.hpp"

#include <dlfcn.h>
#include <signal.h>

#include <array>
#include <chrono>
#include <system_error>

#include "fork.hpp"

namespace gdn_cuda::jit {
namespace {

constexpr std::array kSignals = {SIGINT, SIGTERM};

// Handlers from before the first of several compiles at a time; guarded by fork_lock().
using Actions = std::array<struct sigaction, kSignals.size()>;
int users = 0;
Actions kept;
const InForkedChild forget([] { users = 0; });

Actions current_actions() {
    Actions actions;
    for (std::size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], nullptr, &actions[i]);
    return actions;
}

const void* library_of(const void* address) {
    Dl_info info{};
    return dladdr(address, &info) != 0 ? info.dli_fbase : nullptr;
}

}  // namespace

HostSignals::HostSignals(const void* in_library) : library_(library_of(in_library)) {
    {
        const auto lock = fork_lock();
        if (users++ == 0) kept = current_actions();
    }
    sigset_t all, before;  // the host's threads handle signals
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        watcher_ = std::thread(&HostSignals::watch, this);
    } catch (const std::system_error&) {  // no more threads: the compile goes on without
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

HostSignals::~HostSignals() {
    {
        const std::lock_guard lock(mutex_);
        done_ = true;
    }
    changed_.notify_all();
    if (watcher_.joinable()) watcher_.join();
    put_back();  // of two compiles at a time, one may have restored the other's handlers
    const auto lock = fork_lock();
    --users;
}

void HostSignals::watch() {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, std::chrono::milliseconds(1), [this] { return done_; })) put_back();
}

void HostSignals::put_back() const {
    const Actions now = current_actions();
    Actions wanted;
    {
        const auto lock = fork_lock();
        wanted = kept;
    }
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
        if (now[i].sa_handler == wanted[i].sa_handler || library_ == nullptr) continue;
        if (library_of(reinterpret_cast<const void*>(now[i].sa_handler)) == library_)
            ::sigaction(kSignals[i], &wanted[i], nullptr);
    }
}

}  // namespace gdn_cuda::jit
