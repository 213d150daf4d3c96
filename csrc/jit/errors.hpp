// What the JIT layer throws. One type: callers read the message, they do not branch on the kind.
#pragma once

#include <stdexcept>

namespace gdn_cuda::jit {

struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

}  // namespace gdn_cuda::jit
