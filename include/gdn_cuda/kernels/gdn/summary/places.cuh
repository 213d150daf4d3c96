// Chunks of a sequence, for the kernels that find tails.
#pragma once

#include <gdn_cuda/kernels/common/varlen.cuh>
#include <gdn_cuda/kernels/gdn/summary/tails.cuh>

namespace gdn_cuda::gdn {

__device__ __forceinline__ int chunks_in(const Span& span) {
    return static_cast<int>(ceil_div(i64{span.length}, i64{kChunk}));
}

}  // namespace gdn_cuda::gdn
