// Causal and Hyena convolutions: gdn_cuda/conv has the formulas, docs/conv.md the edge cases. Gradients exist in Python only.
#pragma once

#include <gdn_cuda/arguments.hpp>
#include <tuple>

// Functions that take tensors would be hidden too.
#pragma GCC visibility push(default)

namespace gdn_cuda {}  // namespace gdn_cuda

#pragma GCC visibility pop
