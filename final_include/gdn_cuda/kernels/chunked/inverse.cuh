// The inverse role: T = (I + A)^-1 diag(beta) of a chunk, by substitution within 16 x 16 blocks and products of blocks (fp16, or
// tf32 where entries may be beyond it). k k^T is the warpgroup's wgmma. A warp stores 16 of its rows as blocks of A, inverts the
// block on the diagonal, and after one barrier computes a column of blocks of T from the diagonal downwards.
//
// It is the busiest role: instructions added here lengthen every chunk.
#pragma once

#include <gdn_cuda/kernels/chunked/factors.cuh>
#include <gdn_cuda/kernels/chunked/half_inverse.cuh>
#include <gdn_cuda/kernels/chunked/persistent.cuh>
#include <gdn_cuda/kernels/chunked/token_products.cuh>

namespace gdn_cuda::gdn {

template <ChunkedConfig kConfig, bool kStrided = false>
struct InverseRole : HalfInverse {
    using Plan = ChunkedPlan<kConfig>;
    using Factors = typename Plan::Factors;

    Plan& shared;
    const ChunkedArgs& args;

    __device__ __forceinline__ InverseRole(Plan& shared, const ChunkedArgs& args) : shared(shared), args(args) { find_lane(); }

    __device__ __forceinline__ int index() const {  // among the inverse warpgroups
        return kConfig.inverse_groups == 1 ? 0 : group - 1;
    }
    __device__ __forceinline__ HalfBlocks& half_blocks() const { return shared.inverse[index()].half; }
    __device__ __forceinline__ TriangleBlock* blocks() const { return shared.inverse[index()].blocks; }

    // With norms: the diagonal of k k^T has their squares. Four lanes hold a row; one of them has its diagonal element.
    __device__ __forceinline__ void compute_key_exponents(const float (&products)[32], Factors& factors) const {
        // By selections alone: ptxas serialises wgmmas whose accumulators are read after a branch.
        float squares[2] = {};
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const float x = opaque(g % 2 == 0 ? products[i / 2 * 8 + i % 2 * 6] : products[i / 2 * 8 + i % 2 * 6 + 1]);
            if (i / 2 == warp) squares[i % 2] = x;
        }
        if (t != g / 2) return;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int token = 16 * warp + g + 8 * i;
            const float log_norm = log_inverse_norm(squares[i]);
            store_key_exponents(factors, token, log_norm);
            factors.key_scale[token] = log_norm;  // scores replaces it by the scale
        }
    }

    // This warp's row of blocks of -A from the keys, for tf32; off-diagonal blocks rounded. By warp MMAs: rarely needed, so its
    // products are not kept.
    __device__ __forceinline__ void store_blocks(const SwizzledTile* keys, const Factors& factors) {
        TriangleBlock* own = row_of_blocks(blocks(), warp);
        const auto left = VectorOfLane::straight(lane), right = VectorOfLane::crossed(lane);
#pragma unroll 1
        for (int column = 0; column <= warp; ++column) {
            float sums[2][4] = {};
#pragma unroll 1
            for (int step = 0; step < kConfig.head_k / 16; ++step) {
                const SwizzledTile& tile = keys[step / 4];
                unsigned a[4], b[4];
                ldmatrix_x4(a, row_vector(tile_row(tile.bytes, 16 * warp + left.row), 2 * (step % 4) + left.vector));
                ldmatrix_x4(b, row_vector(tile_row(tile.bytes, 16 * column + right.row), 2 * (step % 4) + right.vector));
                mma_m16n8k16<kConfig.io>(sums[0], a, b[0], b[1]);
                mma_m16n8k16<kConfig.io>(sums[1], a, b[2], b[3]);
            }
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const int row = g + i % 4 / 2 * 8, at = i / 4 * 8 + 2 * t + i % 2, token = 16 * warp + row;
                const unsigned sign = ~__float_as_uint(factors.beta[token]) & 0x80000000u;
                const float x = sums[i / 4][i % 4] * exp2_fast(factors.key_row[token] - factors.column[16 * column + at]);
                own[column].values[TriangleBlock::at(row, at)] =
                    __uint_as_float(__float_as_uint(x) + (sign + (column < warp ? kToTf32 : 0)));
            }
        }
    }

    // Mask that clears the diagonal elements in this thread's packed pair of a diagonal block.
    __device__ __forceinline__ unsigned off_diagonal() const {
        return t != g / 2 ? 0xffffffffu : g % 2 == 0 ? 0xffff0000u : 0x0000ffffu;
    }
    // Stores the rounding residual of a block of T.
    __device__ __forceinline__ static void store_block_residual(unsigned to, const Transposed& x) {
        unsigned residual[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float low = x[i / 2][i % 2 * 2], high = x[i / 2][i % 2 * 2 + 1];
            residual[i] = pack_residual<kConfig.io>(low, high, pack<kConfig.io>(low, high));
        }
        stmatrix_x4_trans(to, residual[0], residual[1], residual[2], residual[3]);
    }
    // Returns whether an entry is beyond kCancelThreshold.
    // for_each: calls what it is given with each block of T and how many blocks it is below the diagonal.
    template <class ForEach>
    __device__ __forceinline__ bool store_column(typename Plan::Matrices& matrices, ForEach&& for_each) {
        const unsigned to = matrix_row(matrices.inverse) + warp * kMnMajorStep;
        unsigned largest = 0;
        for_each([&](const Transposed& x, int below) {
            unsigned rounded[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                rounded[i] = pack<kConfig.io>(x[i / 2][i % 2 * 2], x[i / 2][i % 2 * 2 + 1]);
                largest = larger<kConfig.io>(largest, below == 0 && i % 3 == 0 ? rounded[i] & off_diagonal() : rounded[i]);
            }
            stmatrix_x4_trans(to + below * kMnMajorStep, rounded[0], rounded[1], rounded[2], rounded[3]);
            if constexpr (kConfig.trains)
                store_block_residual(matrix_row(matrices.inverse_residual) + (warp + below) * kMnMajorStep, x);
        });
        const float2 both = unpack<kConfig.io>(largest);
        return __any_sync(0xffffffffu, fmaxf(both.x, both.y) > kCancelThreshold);
    }
    // The rounding residual of the column; rarely needed, so recomputed. In training store_column has stored it.
    template <class ForEach>
    __device__ __forceinline__ void store_residual(SwizzledTile& inverse_residual, ForEach&& for_each) {
        const unsigned to = matrix_row(inverse_residual) + warp * kMnMajorStep;
        for_each([&](const Transposed& x, int below) { store_block_residual(to + below * kMnMajorStep, x); });
    }
    // Where entries may be beyond fp16.
    __device__ __forceinline__ bool store_wide_column(const SwizzledTile* keys, const Factors& factors,
                                                      typename Plan::Matrices& matrices) {
        find_lane();
        store_blocks(keys, factors);
        __syncwarp();
        invert_diagonal(blocks());
        warpgroup_sync();
        const auto for_each = [&](auto&& visit) { for_each_block_below(blocks(), factors.beta, visit); };
        const bool cancels = store_column(matrices, for_each);
        if (!kConfig.trains && cancels) store_residual(matrices.inverse_residual, for_each);
        return cancels;
    }
    __device__ __forceinline__ bool store_half_column(const HalfOperand& diagonal, const Factors& factors,
                                                      typename Plan::Matrices& matrices) {
        const bool cancels = store_column(
            matrices, [&](auto&& visit) { for_each_half_block(half_blocks(), diagonal, factors.beta, visit); });
        if (!kConfig.trains && cancels) [[unlikely]] {
            find_lane();
            store_residual(matrices.inverse_residual, [&](auto&& visit) {
                HalfOperand again;
                load_half_diagonal(again, half_blocks());
                for_each_half_block(half_blocks(), again, factors.beta, visit);
            });
        }
        return cancels;
    }

    __device__ __forceinline__ void run() {
        if constexpr (kConfig.persistent) {
            run_work_tiles();
        } else if (!kConfig.chained || !shared.work.cache.loads) {
#pragma unroll 1
            for (int chunk = index(); chunk < shared.work.tokens.chunks; chunk += kConfig.inverse_groups) run_chunk(chunk);
        }
    }

  private:
    static constexpr int kPlanWarp = 3;  // its column of blocks is the shortest

    enum Ends { no_work_tile, work_tile, block };

    __device__ __forceinline__ void run_work_tiles() {
#pragma unroll 1
        for (int chunk = 0;; ++chunk) {
            const int ends = run_chunk(chunk);
            if (ends == no_work_tile) [[likely]]
                continue;
            if (warp == kPlanWarp) plan_work_tiles(shared, args);
            if (ends == block) break;
        }
    }
    __device__ __forceinline__ void finish_products(float (&products)[32], int stage) const {
        cute::warpgroup_wait<0>();
        warpgroup_fence_operand(products);
        if (kStrided && lane == 0) barrier(shared.tiles_empty[stage]).arrive();
    }
    // Returns what ends with the chunk, if the block is persistent.
    __device__ __forceinline__ int run_chunk(int chunk) {
        const PipelineStage<kConfig.stages> current(chunk);
        find_lane();
        auto& stage = shared.stages[current.index];
        auto& factors = shared.factors[current.index];
        barrier(shared.stage_full[current.index]).wait(current.parity);
        if (tokens_of<kConfig, kStrided>(shared, chunk, current.index) < kChunk) [[unlikely]] {
            clear_tokens_from<kConfig>(stage, thread, tokens_of<kConfig, kStrided>(shared, chunk, current.index));
            cutlass::arch::fence_view_async_shared();
            NamedBarrier::sync(2 * kWarpgroup, kKeysBarrier);
        }
        float products[32];
        start_token_products<kConfig>(products, stage.key, stage.key);
        if (args.call.qk_norm) {
            finish_products(products, current.index);
            compute_key_exponents(products, factors);
            barrier(shared.exponents_full[current.index]).arrive();
            barrier(shared.exponents_full[current.index]).wait(current.parity);
            decay(products, *this, factors.key_row, factors.column);
        } else {
            barrier(shared.exponents_full[current.index]).wait(current.parity);
            DecayFactors decays;
            decays.compute(*this, factors.key_row, factors.column);
            finish_products(products, current.index);
            decays.apply(products, *this, factors.key_row, factors.column);
            find_lane();
        }
        // The other warps have read the previous chunk's blocks.
        barrier(shared.scratch_empty[index()]).wait(static_cast<unsigned>(chunk) / kConfig.inverse_groups & 1 ^ 1);
        unsigned below = 0;
        const int count = tokens_of<kConfig, kStrided>(shared, chunk, current.index);
        const bool is_within = store_half_blocks(below, half_blocks(), products, factors.beta, factors.gate, count);
        __syncwarp();
        HalfOperand diagonal;
        invert_half_diagonal(diagonal, half_blocks(), below);
        const bool wide = any_of_warpgroup(!is_within);
        const PipelineStage<kConfig.stages> next(opaque(chunk + 1));
        barrier(shared.stage_empty[next.index]).wait(next.parity ^ 1);
        const int slot = chunk % (kConfig.stages - 1);
        auto& matrices = shared.matrices[slot];
        bool cancels;
        if (wide) [[unlikely]]
            cancels = store_wide_column(stage.key, factors, matrices);
        else
            cancels = store_half_column(diagonal, factors, matrices);
        if (lane == 0) shared.cancels[slot].column[warp] = cancels;
        barrier(shared.scratch_empty[index()]).arrive();
        cutlass::arch::fence_view_async_shared();
        int ends = no_work_tile;
        if constexpr (kConfig.persistent) {  // before scores may overwrite it
            const auto& known = shared.work_tiles.chunks[current.index];
            ends = __any_sync(0xffffffffu, known.ends_work_tile) + __any_sync(0xffffffffu, known.is_last);
        }
        barrier(shared.matrices_full[current.index]).arrive();
        return ends;
    }
};

}  // namespace gdn_cuda::gdn
