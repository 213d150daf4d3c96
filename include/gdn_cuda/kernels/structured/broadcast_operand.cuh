// An operand of the structured kernels, for host and device: vectors along the last dimension, broadcast over leading
// dimensions.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda::structured {

// (leading..., length). Strides in elements: `stride` of leading dimensions, 0 where one is broadcast, and `step` of the last.
struct BroadcastOperand {
    static constexpr int kMaxLeading = 6;
    const void* data = nullptr;
    i64 stride[kMaxLeading] = {}, step = 0;
};

}  // namespace gdn_cuda::structured
