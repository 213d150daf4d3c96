#include "log.hpp"

#include <unistd.h>

#include <memory>
#include <set>

#include "env.hpp"
#include "fork.hpp"

namespace gdn_cuda::jit {
namespace {

// Guarded by fork_lock(). Never destroyed: threads may log during exit, and the sink may belong to Python.
struct LogState {
    std::shared_ptr<const LogSink> sink;
    std::set<std::string> said;
};
auto& log_state = *new LogState;

int threshold() {
    try {
        return env().log_level;
    } catch (const std::exception&) {
        return static_cast<int>(Level::warning);  // the next env() call reports the error
    }
}

const char* name(Level level) {
    switch (level) {
        case Level::debug:
            return "debug";
        case Level::info:
            return "info";
        case Level::warning:
            return "warning";
        default:
            return "error";
    }
}

}  // namespace

void set_log_sink(LogSink sink) {
    auto shared = sink ? std::make_shared<const LogSink>(std::move(sink)) : nullptr;
    const auto lock = fork_lock();
    log_state.sink.swap(shared);
}

void log(Level level, const std::string& message) {
    std::shared_ptr<const LogSink> sink;
    {
        const auto lock = fork_lock();
        sink = log_state.sink;
    }
    if (sink) return (*sink)(level, message);  // without the lock, since it may wait for the GIL
    if (static_cast<int>(level) < threshold()) return;
    const std::string line = std::string("gdn_cuda: ") + name(level) + ": " + message + "\n";
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

void log_once(Level level, const std::string& message) {
    {
        const auto lock = fork_lock();
        if (!log_state.said.insert(message).second) return;
    }
    log(level, message);
}

}  // namespace gdn_cuda::jit
