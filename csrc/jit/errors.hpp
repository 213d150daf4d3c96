// The JIT layer's only exception type: callers show the message and never branch on the cause.
#pragma once

#include <stdexcept>
#include <string>

namespace gdn_cuda::jit {

// Valid UTF-8, as Python's exceptions require: invalid bytes (in a path, a variable, a compiler's output) become \xNN.
std::string readable(const std::string& text);

struct Error : std::runtime_error {
    explicit Error(const std::string& text) : std::runtime_error(readable(text)) {}
};

}  // namespace gdn_cuda::jit
