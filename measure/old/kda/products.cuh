// What gdn/kda_prepare forms of T: Z = (T r)^T (d k) and P' = P (T r), by warp MMAs. T is used in two parts; both triangles'
// zero blocks are skipped.
#pragma once

#include <gdn_cuda/kernels/gdn/kda/preparing_block.cuh>
#include <gdn_cuda/kernels/gdn/kda/warp.cuh>

namespace gdn_cuda::gdn {

template <DType kIo, class Thread = KdaBlockThread>
struct KdaProducts : KdaWarp {
    static constexpr unsigned kBlocks = kChunk / 16, kPairs = 4;  // n: 8 columns
    static constexpr unsigned kTile = sizeof(SwizzledTile), kStep = 16 * 128;

    KdaPreparePlan& shared;
    // Z: two blocks of 16 rows, 32 channels. The first blocks have most terms, so a warp has the first and the last, or the two
    // between.
    float update[2][kPairs][4];
    // P': a block below the diagonal, or two on it.
    float scores[2][2][4];

    __device__ __forceinline__ explicit KdaProducts(KdaPreparePlan& shared, Thread thread = {}) : shared(shared) {
        find_lane(thread.index());
        if constexpr (Thread::kTakesMany)
            for (auto& block : scores) clear(block);
    }

    // residuals: of the keys of Z, or nullptr.
    __device__ __forceinline__ void multiply(const SwizzledTile* residuals, bool scales) {
#pragma unroll
        for (auto& block : update) clear(block);
        add_update(shared.operands.other_key);
        if (residuals != nullptr) [[unlikely]]
            add_update(residuals);
        if (scales) scale_update();
        multiply_scores();
    }
    // Where no warp reads any more: K_in has been copied, and A inverted.
    __device__ __forceinline__ void store() const { store<false>(shared.operands.key, shared.products); }
    // Once all warps have multiplied.
    __device__ __forceinline__ void store_residuals() const { store<true>(shared.matrices.inverse, shared.matrices.scores[1]); }

  private:
    __device__ __forceinline__ unsigned update_block(unsigned i) const { return i == 0 ? warp / 4 : kBlocks - 1 - warp / 4; }
    __device__ __forceinline__ unsigned first_vector() const { return 4 * (warp % 4); }

    // P' blocks by warp: (3, 0), (3, 1), (2, 0), (1, 0), (2, 1), (3, 2), then two of the diagonal.
    __device__ __forceinline__ bool on_diagonal() const { return warp >= 6; }
    __device__ __forceinline__ unsigned row_block(unsigned i) const {
        return on_diagonal() ? 2 * (warp - 6) + i : 0x321233 >> 4 * warp & 0xf;
    }
    __device__ __forceinline__ unsigned column_block(unsigned i) const {
        return on_diagonal() ? 2 * (warp - 6) + i : 0x210010 >> 4 * warp & 0xf;
    }

    __device__ __forceinline__ void add_update(const SwizzledTile* keys_of_update) {
        if (warp < 4)
            add_update<0>(keys_of_update);
        else
            add_update<1>(keys_of_update);
    }
    // kFirst: update_block(0), so that no branches stand between loads and MMAs.
    template <unsigned kFirst>
    __device__ __forceinline__ void add_update(const SwizzledTile* keys_of_update) {
        constexpr unsigned kUpdateBlocks[2] = {kFirst, kBlocks - 1 - kFirst};
        unsigned right_at[2], left_at[2];
#pragma unroll
        for (unsigned i = 0; i < 2; ++i) {
            right_at[i] = vector_at(keys_of_update, left_row(), first_vector() + 2 * i + left_vector());
            left_at[i] = vector_at(shared.matrices.inverse, right_row(), 2 * kUpdateBlocks[i] + right_vector());
        }
#pragma unroll
        for (unsigned from = kFirst; from < kBlocks; ++from) {  // blocks of tokens
            unsigned keys[2][4];
#pragma unroll
            for (unsigned i = 0; i < 2; ++i) ldmatrix_x4_trans(keys[i], right_at[i] + from * kStep);
#pragma unroll
            for (unsigned part = 0; part < 2; ++part)
#pragma unroll
                for (unsigned i = 0; i < 2; ++i) {
                    if (from < kUpdateBlocks[i]) continue;
                    unsigned left[4];
                    ldmatrix_x4_trans(left, left_at[i] + part * kTile + from * kStep);
#pragma unroll
                    for (unsigned n = 0; n < kPairs; ++n)
                        mma_m16n8k16<kIo>(update[i][n], left, keys[n / 2][n % 2 * 2], keys[n / 2][n % 2 * 2 + 1]);
                }
        }
    }
    __device__ __forceinline__ void scale_update() {
#pragma unroll
        for (unsigned n = 0; n < kPairs; ++n) {
            const float2 scale = gdn_cuda::pair_at(&shared.update_scale[8 * (first_vector() + n) + 2 * t]);
#pragma unroll
            for (unsigned i = 0; i < 8; ++i) update[i / 4][n][i % 4] *= i % 2 == 0 ? scale.x : scale.y;
        }
    }
    __device__ __forceinline__ void multiply_scores() {
        if (on_diagonal()) {
#pragma unroll
            for (unsigned i = 0; i < 2; ++i) multiply_block<1>(i);
        } else if (warp == 0) {
            multiply_block<4>(0);
        } else if (warp < 3) {
            multiply_block<3>(0);
        } else {
            multiply_block<2>(0);
        }
    }
    // Block i of P', a sum of kTerms products of blocks. Each of the three products of parts has a chain of MMAs.
    template <unsigned kTerms>
    __device__ __forceinline__ void multiply_block(unsigned i) {
        const unsigned column = column_block(i);
        const unsigned left_at = vector_at(shared.matrices.scores, 16 * row_block(i) + left_row(), left_vector()),
                       right_at = vector_at(shared.matrices.inverse, 16 * column + left_row(), 2 * column + left_vector());
        float rest[2][2][4] = {};
        clear(scores[i]);
#pragma unroll
        for (unsigned term = 0; term < kTerms; ++term) {
            unsigned left[2][4], right[2][4];
#pragma unroll
            for (unsigned part = 0; part < 2; ++part) {
                ldmatrix_x4(left[part], (left_at ^ (column + term) << 5) + part * kTile);
                ldmatrix_x4_trans(right[part], right_at + term * kStep + part * kTile);
            }
#pragma unroll
            for (unsigned n = 0; n < 2; ++n) {
                mma_m16n8k16<kIo>(rest[0][n], left[1], right[0][2 * n], right[0][2 * n + 1]);
                mma_m16n8k16<kIo>(rest[1][n], left[0], right[1][2 * n], right[1][2 * n + 1]);
                mma_m16n8k16<kIo>(scores[i][n], left[0], right[0][2 * n], right[0][2 * n + 1]);
            }
        }
#pragma unroll
        for (unsigned k = 0; k < 8; ++k) scores[i][k / 4][k % 4] += rest[0][k / 4][k % 4] + rest[1][k / 4][k % 4];
    }

    template <bool kResidual>
    __device__ __forceinline__ void store(SwizzledTile* update_tiles, SwizzledTile& scores_tile) const {
#pragma unroll
        for (unsigned i = 0; i < 2; ++i) {
            const unsigned to = pair_at(update_tiles, 16 * update_block(i), 8 * first_vector());
#pragma unroll
            for (unsigned n = 0; n < kPairs; ++n) store_pairs<kResidual>(to ^ n << 4, update[i][n]);
        }
#pragma unroll
        for (unsigned i = 0; i < 2; ++i) {
            if (i == 1 && !on_diagonal()) break;
            const unsigned row = row_block(i), column = column_block(i), to = pair_at(&scores_tile, 16 * row, 16 * column);
#pragma unroll
            for (unsigned n = 0; n < 2; ++n) store_pairs<kResidual>(to ^ n << 4, scores[i][n]);
            if (!on_diagonal())  // the block that mirrors it is above the diagonal
                store_shared(vector_at(&scores_tile, 16 * column + left_row(), 2 * row + left_vector()), uint4{});
        }
    }
    template <bool kResidual>
    __device__ __forceinline__ static void store_pairs(unsigned to, const float (&sums)[4]) {
#pragma unroll
        for (unsigned half = 0; half < 2; ++half) {
            const float x = sums[2 * half], next = sums[2 * half + 1];
            const unsigned rounded = pack<kIo>(x, next);
            store_shared(to + half * kEightRows, kResidual ? pack_residual<kIo>(x, next, rounded) : rounded);
        }
    }
};

}  // namespace gdn_cuda::gdn
