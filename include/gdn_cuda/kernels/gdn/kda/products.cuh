// What gdn/kda_prepare forms of T, by wgmmas: the first warpgroup Z = (T r)^T (d k), the second P' = P (T r). T and P are used
// in two parts; what is above their diagonals is 0.
#pragma once

#include <gdn_cuda/kernels/common/stmatrix.cuh>
#include <gdn_cuda/kernels/gdn/kda/preparing_block.cuh>
#include <gdn_cuda/kernels/gdn/kda/warp.cuh>
#include <gdn_cuda/kernels/hopper/tile_products.cuh>

namespace gdn_cuda::gdn {

template <DType kIo, class Thread = KdaBlockThread>
struct KdaProducts : KdaWarp {
    KdaPreparePlan& shared;
    const bool forms_update;
    float update[64];  // the first warpgroup forms these
    float scores[32];  // the second one these

    __device__ __forceinline__ explicit KdaProducts(KdaPreparePlan& shared, Thread thread = {})
        : shared(shared), forms_update(find_group(thread.index()) == 0) {
        if constexpr (Thread::kTakesMany) {
            clear_fragment(update);
            clear_fragment(scores);
        }
    }

    // residuals: of the keys of Z, or nullptr.
    __device__ __forceinline__ void multiply(const SwizzledTile* residuals, bool scales) {
        if (forms_update) {
            multiply_keys(shared.operands.other_key, false);
            if (residuals != nullptr) [[unlikely]]
                multiply_keys(residuals, true);
            if (scales) scale_update();
        } else {
            multiply_scores();
        }
    }
    // Where no warp reads any more: K_in has been copied, and A inverted.
    __device__ __forceinline__ void store() const { store<false>(shared.operands.key, shared.products); }
    // Once all warps have multiplied.
    __device__ __forceinline__ void store_residuals() const { store<true>(shared.matrices.inverse, shared.matrices.scores[1]); }

  private:
    __device__ __forceinline__ unsigned find_group(unsigned index) {
        find_lane(index);
        return warp / 4;
    }
    // Small products first.
    __device__ __forceinline__ void multiply_keys(const SwizzledTile* keys, bool add) {
        const auto right = tile_operand(keys, sizeof(SwizzledTile));
        cute::warpgroup_arrive();
#pragma unroll
        for (int part = 1; part >= 0; --part) {
            const auto left = tile_operand(&shared.matrices.inverse[part], sizeof(SwizzledTile));
#pragma unroll
            for (int step = 0; step < kChunk / 16; ++step)
                Product<kIo, kKdaHeadK, false>::run_transposed(update, left + mn_major_step(step), right + mn_major_step(step),
                                                               add || part == 0 || step > 0);
        }
        cute::warpgroup_commit_batch();
        wait_for_product(update);
    }
    __device__ __forceinline__ void multiply_scores() {
        const auto& [inverse, left] = shared.matrices;
        start_tile_product<TileProduct::straight, kIo>(scores, left[1], inverse[0], false);
        start_tile_product<TileProduct::straight, kIo>(scores, left[0], inverse[1]);
        start_tile_product<TileProduct::straight, kIo>(scores, left[0], inverse[0]);
        wait_for_product(scores);
    }
    __device__ __forceinline__ void scale_update() {
#pragma unroll
        for (unsigned n = 0; n < kKdaHeadK / 8; ++n) {
            const float2 scale = gdn_cuda::pair_at(&shared.update_scale[8 * n + 2 * t]);
#pragma unroll
            for (unsigned i = 0; i < 4; ++i) update[4 * n + i] *= i % 2 == 0 ? scale.x : scale.y;
        }
    }

    template <bool kResidual>
    __device__ __forceinline__ void store(SwizzledTile* update_tiles, SwizzledTile& scores_tile) const {
        if (forms_update)
            store_fragment<kResidual>(update_tiles, update);
        else
            store_fragment<kResidual>(&scores_tile, scores);
    }
    template <bool kResidual, int kElements>
    __device__ __forceinline__ void store_fragment(SwizzledTile* tiles, const float (&sums)[kElements]) const {
        const unsigned row = tile_row(tiles->bytes, static_cast<int>(16 * (warp % 4) + left_row()));
#pragma unroll
        for (unsigned n = 0; n < kElements / 4; n += 2) {
            const auto pair = [&](unsigned i) {
                const float x = sums[4 * n + 2 * i], next = sums[4 * n + 2 * i + 1];
                const unsigned rounded = pack<kIo>(x, next);
                return kResidual ? pack_residual<kIo>(x, next, rounded) : rounded;
            };
            stmatrix_x4(row_vector(row, static_cast<int>(n % 8 + left_vector())) + n / 8 * sizeof(SwizzledTile), pair(0),
                        pair(1), pair(2), pair(3));
        }
    }
};

}  // namespace gdn_cuda::gdn
