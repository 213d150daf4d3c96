// The inverse role: T = (I + A)^-1 diag(beta) of a chunk, by substitution within 16 x 16 blocks and products of blocks (fp16,
// or tf32 where entries may be beyond it). k k^T is the warpgroup's wgmma. A warp stores 16 of its rows as blocks of A, inverts
// the block on the diagonal, and after one barrier computes a column of blocks of T from the diagonal downwards.
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
    static constexpr bool kHalf = kConfig.inverts_in_half();

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
            store_key_exponents<kHalf>(factors, token, log_norm);
            factors.key_scale[token] = log_norm;  // scores replaces it by the scale
            if constexpr (kHalf) factors.key_row[token] = exp2_fast(log_norm);
        }
    }

    // Products of keys times their inverse norms.
    __device__ __forceinline__ void normalize(float (&products)[32], const float (&norms)[kChunk]) const {
        const float row[2] = {norms[16 * warp + g], norms[16 * warp + g + 8]};
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            if (n / 2 > warp) break;
            const float2 column = pair_at(&norms[8 * n + 2 * t]);
#pragma unroll
            for (int i = 0; i < 4; ++i) products[4 * n + i] *= row[i / 2] * (i % 2 == 0 ? column.x : column.y);
        }
    }

    // This warp's row of blocks of -A; off-diagonal blocks rounded to tf32.
    __device__ __forceinline__ void store_blocks(const float (&products)[32], const float (&beta)[kChunk]) {
        unsigned sign[2];  // added, like the rounding constant
#pragma unroll
        for (int i = 0; i < 2; ++i) sign[i] = ~__float_as_uint(beta[16 * warp + g + 8 * i]) & 0x80000000u;
        TriangleBlock* own = row_of_blocks(blocks(), warp);
        const int halves[2] = {TriangleBlock::at(g, 2 * t), TriangleBlock::at(g, 8 + 2 * t)};
#pragma unroll
        for (int column = 0; column < 4; ++column) {
            if (column > warp) break;
            const unsigned round = column < warp ? kToTf32 : 0;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float* x = &products[8 * column + 4 * (i % 2) + 2 * (i / 2)];
                *reinterpret_cast<uint2*>(&own[column].values[halves[i % 2] + i / 2 * TriangleBlock::kEightRows]) = {
                    __float_as_uint(x[0]) + (sign[i / 2] + round), __float_as_uint(x[1]) + (sign[i / 2] + round)};
            }
        }
    }

    // The same from products of keys that have not been multiplied by decays and betas.
    __device__ __forceinline__ void decay_and_store_blocks(float (&products)[32], const Factors& factors) {
        decay(products, *this, factors.gate, factors.gate);
        const float2 beta = betas_of(factors.beta, warp);
#pragma unroll
        for (int i = 0; i < 32; ++i) products[i] *= fabsf(i / 2 % 2 == 0 ? beta.x : beta.y);
        store_blocks(products, factors.beta);
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
    // Stores blocks of T of this warp's column, and finds the largest of their off-diagonal entries.
    struct ColumnStore {
        const InverseRole& role;
        typename Plan::Matrices& matrices;
        unsigned to, largest = 0;

        __device__ __forceinline__ ColumnStore(const InverseRole& role, typename Plan::Matrices& matrices)
            : role(role), matrices(matrices), to(role.matrix_row(matrices.inverse) + role.warp * kMnMajorStep) {}
        __device__ __forceinline__ void operator()(const Transposed& x, int below) {
            unsigned rounded[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                rounded[i] = pack<kConfig.io>(x[i / 2][i % 2 * 2], x[i / 2][i % 2 * 2 + 1]);
                largest = larger<kConfig.io>(largest, below == 0 && i % 3 == 0 ? rounded[i] & role.off_diagonal() : rounded[i]);
            }
            stmatrix_x4_trans(to + below * kMnMajorStep, rounded[0], rounded[1], rounded[2], rounded[3]);
            if constexpr (kConfig.trains)
                store_block_residual(role.matrix_row(matrices.inverse_residual) + (role.warp + below) * kMnMajorStep, x);
        }
        // Whether an entry is beyond kCancelThreshold.
        __device__ __forceinline__ bool cancels() const {
            const float2 both = unpack<kConfig.io>(largest);
            return __any_sync(0xffffffffu, fmaxf(both.x, both.y) > kCancelThreshold);
        }
    };
    // The rounding residual of the column; rarely needed, so recomputed. In training store_column has stored it.
    template <class ForEach>
    __device__ __forceinline__ void store_residual(SwizzledTile& inverse_residual, ForEach&& for_each) {
        const unsigned to = matrix_row(inverse_residual) + warp * kMnMajorStep;
        for_each([&](const Transposed& x, int below) { store_block_residual(to + below * kMnMajorStep, x); });
    }
    // By tf32, once blocks of -A have been stored. matrices_empty: waits until T may be replaced.
    template <class Wait>
    __device__ __forceinline__ bool store_tf32_column(const Factors& factors, typename Plan::Matrices& matrices,
                                                      Wait&& matrices_empty) {
        __syncwarp();
        invert_diagonal(blocks());
        warpgroup_sync();
        matrices_empty();
        const auto for_each = [&](auto&& visit) { for_each_block_below(blocks(), factors.beta, visit); };
        ColumnStore store(*this, matrices);
        for_each(store);
        const bool cancels = store.cancels();
        if (!kConfig.trains && cancels) [[unlikely]] {
            find_lane();
            store_residual(matrices.inverse_residual, for_each);
        }
        return cancels;
    }
    // T's rounding residual, from fp16 blocks that have been inverted.
    __device__ __forceinline__ void store_half_residual(const Factors& factors, SwizzledTile& inverse_residual) {
        find_lane();
        HalfOperand diagonal;
        load_half_diagonal(diagonal, half_blocks());
        store_residual(inverse_residual, [&](auto&& visit) {
            visit_half_diagonal(diagonal, factors.beta, factors.gate, visit);
            for_each_half_block_below(half_blocks(), diagonal, factors.beta, factors.gate, visit);
        });
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
    // Returns what ends with the chunk, if the block is persistent.
    __device__ __forceinline__ int run_chunk(int chunk) {
        const PipelineStage<kConfig.stages> current(chunk);
        find_lane();
        auto&& stage = tiles_of<kConfig>(shared, chunk, current.index);
        auto& factors = shared.factors[current.index];
        barrier(shared.stage_full[current.index]).wait(current.parity);
        if (tokens_of<kConfig, kStrided>(shared, chunk, current.index) < kChunk) [[unlikely]] {
            if constexpr (kConfig.is_wide()) {
                const PipelineStage<kConfig.row_stages()> rows(chunk);
                barrier(shared.rows_full[rows.index]).wait(rows.parity);
            }
            clear_tokens_from<kConfig>(stage, thread, tokens_of<kConfig, kStrided>(shared, chunk, current.index));
            cutlass::arch::fence_view_async_shared();
            NamedBarrier::sync(2 * kWarpgroup, kKeysBarrier);
        }
        float products[32];
        start_token_products<kConfig>(products, stage.key, stage.key);
        cute::warpgroup_wait<0>();
        warpgroup_fence_operand(products);
        if (kStrided && lane == 0) barrier(shared.tiles_empty[current.index]).arrive();
        const int slot = chunk % kConfig.slots();
        auto& matrices = shared.matrices[slot];
        const auto wait_for_scratch = [&] {  // the other warps have read the previous chunk's blocks
            barrier(shared.scratch_empty[index()]).wait(static_cast<unsigned>(chunk) / kConfig.inverse_groups & 1 ^ 1);
        };
        const auto wait_for_matrices = [&] {
            if constexpr (kConfig.is_wide()) {
                barrier(shared.inverse_empty).wait(static_cast<unsigned>(chunk) & 1 ^ 1);
            } else {
                const PipelineStage<kConfig.stages> next(opaque(chunk + 1));
                barrier(shared.stage_empty[next.index]).wait(next.parity ^ 1);
            }
        };
        bool cancels;
        if constexpr (kHalf) {
            if (args.call.qk_norm) {
                compute_key_exponents(products, factors);
                barrier(shared.exponents_full[current.index]).arrive();
                barrier(shared.exponents_full[current.index]).wait(current.parity);
                normalize(products, factors.key_row);
            }
            wait_for_scratch();
            unsigned below = 0;
            const bool within = store_half_blocks(below, half_blocks(), products, betas_of(factors.beta, warp));
            __syncwarp();
            HalfOperand diagonal;
            invert_half_diagonal(diagonal, half_blocks(), below);
            const bool is_beyond = any_of_warpgroup(!within | !betas_are_within(factors.beta));
            wait_for_matrices();
            if (is_beyond) [[unlikely]] {
                find_lane();
                decay_and_store_blocks(products, factors);
                cancels = store_tf32_column(factors, matrices, [] {});
            } else {
                ColumnStore store(*this, matrices);
                visit_half_diagonal(diagonal, factors.beta, factors.gate, store);
                for_each_half_block_below(half_blocks(), diagonal, factors.beta, factors.gate, store);
                cancels = store.cancels();
                if (cancels) [[unlikely]]
                    store_half_residual(factors, matrices.inverse_residual);
            }
        } else {
            if (args.call.qk_norm) {
                compute_key_exponents(products, factors);
                barrier(shared.exponents_full[current.index]).arrive();
            }
            barrier(shared.exponents_full[current.index]).wait(current.parity);
            decay(products, *this, factors.key_row, factors.column);  // |A|, up to the sign of the product
            wait_for_scratch();
            store_blocks(products, factors.beta);
            cancels = store_tf32_column(factors, matrices, wait_for_matrices);
        }
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
