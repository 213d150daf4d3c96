// What the JIT layer throws. One type: callers read the message, they do not branch on the kind.
#pragma once

#include <stdexcept>
#include <string>

namespace gdn_cuda::jit {

// The text as UTF-8: bytes that are none (of a path, a variable, a compiler's output) as \xNN. Python's exceptions take no
// others.
std::string readable(const std::string& text);

struct Error : std::runtime_error {
    explicit Error(const std::string& text) : std::runtime_error(readable(text)) {}
};

}  // namespace gdn_cuda::jit
