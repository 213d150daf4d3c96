// A warp's tile of 512 tokens of one channel in memory, and its sums (toeplitz_product.cuh).
#pragma once

#include <gdn_cuda/kernels/conv/hyena_common.cuh>
#include <gdn_cuda/kernels/conv/toeplitz_product.cuh>

namespace gdn_cuda::conv {

// The first of a lane's eight tokens of either half.
__device__ __forceinline__ int first_of_half(int tile, int half) {
    return tile + half * (kTileTokens / 2) + static_cast<int>(threadIdx.x) % 32 * kEight;
}

template <class T>
struct HyenaTile {
    EightTokens<T> half[2];

    __device__ __forceinline__ void load(const HyenaRow<T>& row, int tile, int end, bool vectors) {
        const bool whole = vectors && tile + kTileTokens <= end;
#pragma unroll
        for (int i = 0; i < 2; ++i) half[i].load(row, first_of_half(tile, i), end, whole);
    }
    __device__ __forceinline__ void multiply(const HyenaTile& by, float (&product)[2][kEight]) const {
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int i = 0; i < kEight; ++i) product[h][i] = half[h][i] * by.half[h][i];
    }
    // Stores this tile times the sums.
    __device__ __forceinline__ void store_product(const TileSums& sums, const HyenaRow<T>& row, int tile, int end,
                                                  bool vectors) const {
        const bool whole = vectors && tile + kTileTokens <= end;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            EightTokens<T> y;
#pragma unroll
            for (int i = 0; i < kEight; ++i) y.items[i] = from_float<T>(half[h][i] * sums[i / 2][2 * h + i % 2]);
            y.store(row, first_of_half(tile, h), end, whole);
        }
    }
};

__device__ __forceinline__ void begin_sums(TileSums& sums, const float (&u)[2][kEight], float bias) {
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int i = 0; i < kEight; ++i) sums[i / 2][2 * h + i % 2] = bias * u[h][i];
}
__device__ __forceinline__ void multiply_by_mask(TileSums& sums, const HyenaMask& mask, int batch, int tile, int end) {
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int i = 0; i < kEight; ++i) {
            const int token = first_of_half(tile, h) + i;
            if (token < end) sums[i / 2][2 * h + i % 2] *= mask_at(mask, batch, token);
        }
}

}  // namespace gdn_cuda::conv
