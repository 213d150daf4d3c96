// New tensors for operators: torch::stable::new_empty looks its operator up by name at every call, which takes the host twice
// as long as the allocation.
#pragma once

#include <algorithm>
#include <array>

#include "tensor.hpp"

namespace gdn_cuda {

// Contiguous, on the device of `like`.
template <size_t kRank>
Tensor new_tensor(const View& like, const int64_t (&sizes)[kRank], int32_t dtype) {
    std::array<int64_t, kRank> strides;
    int64_t stride = 1;
    for (size_t d = kRank; d-- > 0; stride *= std::max<int64_t>(sizes[d], 1)) strides[d] = stride;
    AtenTensorHandle made = nullptr;
    TORCH_ERROR_CODE_CHECK(
        aoti_torch_empty_strided(kRank, sizes, strides.data(), dtype, like.device_type, like.device_index, &made));
    return Tensor(made);
}

}  // namespace gdn_cuda
