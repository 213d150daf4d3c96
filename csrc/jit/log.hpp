// Messages for people. Python installs a sink that feeds logging.getLogger("gdn_cuda"), which filters by its own level and
// hears every message; without a sink they go to standard error from GDN_LOG_LEVEL up.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace gdn_cuda::jit {

enum class Level : int { debug = 10, info = 20, warning = 30, error = 40, off = 100 };

using LogSink = std::function<void(Level, const std::string&)>;

void set_log_sink(LogSink sink);
void log(Level level, const std::string& message);
void log_once(Level level, const std::string& message);  // the same message once a process

}  // namespace gdn_cuda::jit
