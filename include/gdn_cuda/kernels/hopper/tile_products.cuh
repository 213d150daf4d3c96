// Products of two 64 x 64 tiles in shared memory, by a warpgroup.
#pragma once

#include <gdn_cuda/kernels/hopper/fragment.cuh>
#include <gdn_cuda/kernels/hopper/tile.cuh>

namespace gdn_cuda {

// d = or += x y^T, x y or x^T y.
enum class TileProduct { by_rows, straight, transposed };

template <TileProduct kProduct, DType kIo>
__device__ __forceinline__ void start_tile_product(float (&d)[32], const SwizzledTile& x, const SwizzledTile& y,
                                                   bool add = true) {
    constexpr int kSteps = kTileElements / 16;
    const auto left = tile_operand(&x, sizeof(SwizzledTile)), right = tile_operand(&y, sizeof(SwizzledTile));
    cute::warpgroup_arrive();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
        const bool adds = add || step > 0;
        if constexpr (kProduct == TileProduct::by_rows)
            Product<kIo, 64, true>::run(d, left + k_major_step(step), right + k_major_step(step), adds);
        else if constexpr (kProduct == TileProduct::straight)
            Product<kIo, 64, false>::run(d, left + k_major_step(step), right + mn_major_step(step), adds);
        else
            Product<kIo, 64, false>::run_transposed(d, left + mn_major_step(step), right + mn_major_step(step), adds);
    }
    cute::warpgroup_commit_batch();
}

// d = left right^T over kElements columns, which span contiguous tiles.
template <DType kIo, int kElements>
__device__ __forceinline__ void start_row_products(float (&d)[32], const SwizzledTile* left, const SwizzledTile* right) {
    const auto left_operand = tile_operand(left, 0), right_operand = tile_operand(right, 0);
    cute::warpgroup_arrive();
#pragma unroll
    for (int step = 0; step < kElements / 16; ++step)
        Product<kIo, 64, true>::run(d, left_operand + k_major_step(step), right_operand + k_major_step(step), step > 0);
    cute::warpgroup_commit_batch();
}

}  // namespace gdn_cuda
