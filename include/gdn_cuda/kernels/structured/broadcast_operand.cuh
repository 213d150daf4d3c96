// An operand of the structured kernels, for host and device: lines of numbers under leading dimensions.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda::structured {

// (leading..., length); strides in elements, 0 where a dimension is broadcast.
struct Lines {
    static constexpr int kMaxLeading = 6;
    const void* data = nullptr;
    i64 stride[kMaxLeading] = {}, step = 0;
};

}  // namespace gdn_cuda::structured
