// Log messages. Python installs a sink that feeds logging.getLogger("gdn_cuda"), which receives every message and filters by
// its own level; without a sink, messages from GDN_LOG_LEVEL up go to standard error.
#pragma once

#include <functional>
#include <string>

namespace gdn_cuda::jit {

enum class Level : int { debug = 10, info = 20, warning = 30, error = 40, off = 100 };

using LogSink = std::function<void(Level, const std::string&)>;

void set_log_sink(LogSink sink);
void log(Level level, const std::string& message);
void log_once(Level level, const std::string& message);  // each distinct message once per process

}  // namespace gdn_cuda::jit
