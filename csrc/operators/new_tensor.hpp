// New tensors for operators: torch::stable::new_empty looks its operator up by name at every call, which takes the host twice
// as long as the allocation.
#pragma once

#include <optional>

#include "tensor.hpp"

namespace gdn_cuda {

using NewSizes = torch::headeronly::IntHeaderOnlyArrayRef;

// Contiguous, on the device of `like`.
Tensor new_tensor(const View& like, NewSizes sizes, int32_t dtype);
Tensor new_tensor(const Tensor& like, NewSizes sizes, std::optional<ScalarType> type = {});  // else of the dtype of `like`

}  // namespace gdn_cuda
