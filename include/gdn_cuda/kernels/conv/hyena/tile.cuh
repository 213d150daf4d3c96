// A warp's tile of 512 tokens of one channel in memory, and its sums (toeplitz/product.cuh).
#pragma once

#include <gdn_cuda/kernels/conv/hyena/common.cuh>
#include <gdn_cuda/kernels/conv/toeplitz/product.cuh>

namespace gdn_cuda::conv {

template <class T>
using ToeplitzTile = TokenTile<T, 2>;  // part 0: rows g, part 1: rows g + 8
static_assert(ToeplitzTile<float>::kTokens == kTileTokens);

template <class T>
__device__ __forceinline__ void multiply(float (&u)[2][kEight], const ToeplitzTile<T>& x1, const ToeplitzTile<T>& v) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < kEight; ++i) u[half][i] = x1.eights[half][i] * v.eights[half][i];
}
// A lane's i-th value of a half.
__device__ __forceinline__ float& sum_of(TileSums& sums, int half, int i) {
    return sums[i / 2][2 * half + i % 2];
}
__device__ __forceinline__ void begin_sums(TileSums& sums, const float (&u)[2][kEight], float bias) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < kEight; ++i) sum_of(sums, half, i) = bias * u[half][i];
}
__device__ __forceinline__ void multiply_by_mask(TileSums& sums, HyenaStage<kTileTokens>& stage, const HyenaMask& mask,
                                                 int batch, int tile, int end) {
    stage_mask(stage, mask, batch, tile, end);
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < kEight; ++i) sum_of(sums, half, i) *= stage.values[ToeplitzTile<float>::first(0, half) + i];
}
// x2 times the sums.
template <class T>
__device__ __forceinline__ ToeplitzTile<T> gated(const ToeplitzTile<T>& x2, TileSums& sums) {
    ToeplitzTile<T> y;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < kEight; ++i) y.eights[half].items[i] = from_float<T>(x2.eights[half][i] * sum_of(sums, half, i));
    return y;
}

}  // namespace gdn_cuda::conv
