// The scores role: one warpgroup that multiplies C B^T of a chunk once for the group, and forms M of each head from it.
#pragma once

#include <gdn_cuda/kernels/chunked/products.cuh>
#include <gdn_cuda/kernels/common/opaque.cuh>
#include <gdn_cuda/kernels/common/shared.cuh>
#include <gdn_cuda/kernels/common/stmatrix.cuh>
#include <gdn_cuda/kernels/ssd/prefill/inputs.cuh>

namespace gdn_cuda::ssd {

template <SsdConfig kConfig>
struct ScoresRole : Lane {
    using Plan = SsdPlan<kConfig>;
    using Factors = typename Plan::Factors;
    using Resets = typename Plan::Resets;
    static constexpr int kStages = kConfig.stages(), kSlots = kConfig.slots();

    Plan& shared;
    const SsdArgs& args;
    const SsdWork& work;

    __device__ __forceinline__ ScoresRole(Plan& shared, const SsdArgs& args) : shared(shared), args(args), work(shared.work) {
        find_lane();
    }

    // Zeroes what a chunk has past the end of a packed sequence: the next one's tokens, which may be infinite or NaN.
    __device__ __forceinline__ void clear_tail(int chunk, int stage_index) const {
        auto& stage = stage_at(shared, stage_index);
        const int count = tokens_in(work, chunk), tiles = kConfig.state_tiles() + work.tiles;
#pragma unroll 1
        for (int i = thread; i < (kChunk - count) * tiles * 8; i += kWarpgroup) {
            const int row = count + i / (tiles * 8), tile = i % (tiles * 8) / 8;
            SwizzledTile& cleared = tile < kConfig.state_tiles() ? stage.B[tile] : stage.x[tile - kConfig.state_tiles()];
            store_shared(row_vector(tile_row(cleared.bytes, row), i % 8), uint4{});
        }
        cutlass::arch::fence_view_async_shared();
        warpgroup_sync();
    }
    // ---- M = C B^T exp(G_i - G_j) δ_j up to the diagonal
    //
    // A warp has the tokens i of the blocks of 8 number w and 7 - w, not 16 adjacent ones, so that all warps have as much up to
    // the diagonal: three strips of 8 x 16 elements before the blocks of 16 on it, and two on it. Warps 0 and 1 are outer:
    // their tokens are in the first and the last block of 16, the others' in those between.

    __device__ __forceinline__ int first_token(int half) const { return 8 * (half == 0 ? warp : 7 - warp); }

    // C B^T, by rows of C in that order, which ldmatrix gives: as many columns at a time as registers are left for.
    __device__ __forceinline__ void multiply(float (&products)[32], const typename Plan::Stage& stage) const {
        constexpr int kSteps = kConfig.scores_registers() < 80 ? 2 : 4;
        const unsigned row = tile_row(stage.C[0].bytes, first_token(lane / 8 % 2) + lane % 8);
        const auto right = tile_operand(stage.B, 0);
#pragma unroll
        for (int first = 0; first < kConfig.states / 16; first += kSteps) {
            unsigned C[kSteps][4];
            if (first > 0) wait_for_product(products);  // it reads the registers that are loaded next
#pragma unroll
            for (int i = 0; i < kSteps; ++i)
                ldmatrix_x4(C[i], row_vector(row, 2 * ((first + i) % 4) + lane / 16) +
                                      (first + i) / 4 * static_cast<int>(sizeof(SwizzledTile)));
            cute::warpgroup_arrive();
#pragma unroll
            for (int i = 0; i < kSteps; ++i)
                Product<kConfig.io, 64, true>::run(products, C[i], right + k_major_step(first + i), first + i > 0);
            cute::warpgroup_commit_batch();
        }
    }

    // Which strip: the half of the warp's tokens i, and the block of 16 tokens j.
    struct Strip {
        int half, block;
    };
    static constexpr int kStrips = 5;  // the first three are before the diagonal
    // Without arrays: their elements are known too late for ptxas to keep several wgmmas in flight.
    __device__ __forceinline__ static constexpr Strip strip(bool outer, int i) {
        if (outer) return {i == 3 ? 0 : 1, i < 3 ? i : i == 3 ? 0 : 3};
        return {i == 2 || i == 3 ? 0 : 1, i < 2 ? i : i - 2};
    }
    using Strips = float[kStrips][4];
    __device__ __forceinline__ static void choose_strips(Strips& strips, const float (&products)[32], bool outer) {
#pragma unroll
        for (int i = 0; i < kStrips; ++i) {
            const Strip a = strip(true, i), b = strip(false, i);
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const float x = products[8 * a.block + 4 * (j / 2) + 2 * a.half + j % 2],
                            y = products[8 * b.block + 4 * (j / 2) + 2 * b.half + j % 2];
                strips[i][j] = outer ? x : y;
            }
        }
    }

    // Before the diagonal: by products of decays. kResets: where a decay is 0, M is too, which stops infinities and NaN.
    template <bool kResets>
    __device__ __forceinline__ void decay_before(unsigned (&pairs)[2], const float (&products)[4], const Factors& factors,
                                                 const Strip& strip, int block) const {
        float from = factors.row[first_token(strip.half) + g];
        if (strip.block + 1 < block) from *= factors.between[block + strip.block - 1];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int column = 16 * strip.block + 8 * i + 2 * t;
            const float2 added = pair_at(&factors.added[column]);
            float2 score = {products[2 * i] * (from * added.x), products[2 * i + 1] * (from * added.y)};
            if constexpr (kResets) {
                const float2 decay = pair_at(&factors.column[column]);
                score.x = from * decay.x == 0.f ? 0.f : score.x;
                score.y = from * decay.y == 0.f ? 0.f : score.y;
            }
            pairs[i] = pack<kConfig.io>(score.x, score.y);
        }
    }
    // On it, or anywhere: by the exponential of the difference. The loads are not under the condition that a decay is not 0,
    // under which they would wait for each other.
    template <bool kResets>
    __device__ __forceinline__ void decay_exactly(unsigned (&pairs)[2], const float (&products)[4], const Factors& factors,
                                                  const Strip& strip) const {
        const int token = first_token(strip.half) + g;
        const float row = opaque(factors.steps.gate[token]);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int column = 16 * strip.block + 8 * i + 2 * t;
            const float2 gates = pair_at(&factors.steps.gate[column]), deltas = pair_at(&factors.steps.delta[column]);
            const float2 decay = {exp2_fast(row - opaque(gates.x)), exp2_fast(row - opaque(gates.y))};
            float2 score = {products[2 * i] * (decay.x * opaque(deltas.x)), products[2 * i + 1] * (decay.y * opaque(deltas.y))};
            if constexpr (kResets) {
                score.x = decay.x == 0.f ? 0.f : score.x;
                score.y = decay.y == 0.f ? 0.f : score.y;
            }
            const unsigned kept = token > column ? 0xffffffffu : token == column ? 0xffffu : 0;
            pairs[i] = pack<kConfig.io>(score.x, score.y) & kept;
        }
    }
    // Where a lane's row of stmatrix is, of two strips.
    __device__ __forceinline__ unsigned to(const SwizzledTile& scores, const Strip& a, const Strip& b) const {
        const Strip strip{lane < 16 ? a.half : b.half, lane < 16 ? a.block : b.block};
        return row_vector(tile_row(scores.bytes, first_token(strip.half) + lane % 8), 2 * strip.block + lane / 8 % 2);
    }
    // kMixed: where tokens decay and grow, factors of a decay may overflow where it does not.
    template <bool kOuter, bool kResets, bool kMixed>
    __device__ __forceinline__ void store_head(const Strips& strips, const Factors& factors, SwizzledTile& scores) const {
        unsigned pairs[kStrips][2];
#pragma unroll
        for (int i = 0; i < kStrips; ++i) {
            constexpr int kBlocks[2] = {kOuter ? 0 : 1, kOuter ? 3 : 2};  // of 16, that the halves are in
            const Strip at = strip(kOuter, i);
            if (i < 3 && !kMixed)
                decay_before<kResets>(pairs[i], strips[i], factors, at, kBlocks[at.half]);
            else
                decay_exactly<kResets>(pairs[i], strips[i], factors, at);
        }
        const auto place = [&](int a, int b) { return to(scores, strip(kOuter, a), strip(kOuter, b)); };
        stmatrix_x4(place(0, 1), pairs[0][0], pairs[0][1], pairs[1][0], pairs[1][1]);
        stmatrix_x4(place(3, 4), pairs[3][0], pairs[3][1], pairs[4][0], pairs[4][1]);
        stmatrix_x2(place(2, 2), pairs[2][0], pairs[2][1]);
    }
    template <bool kOuter>
    __device__ __forceinline__ void store_heads(const Strips& strips, int ready, int slot, int heads, Resets resets) const {
        const auto& factors = shared.factors[ready];
        auto& scores = shared.scores[slot];
        if (resets == Resets::mixed) [[unlikely]] {
#pragma unroll 1
            for (int head = 0; head < heads; ++head) store_head<kOuter, true, true>(strips, factors[head], scores[head]);
        } else if (resets == Resets::some) {
#pragma unroll 1
            for (int head = 0; head < heads; ++head) store_head<kOuter, true, false>(strips, factors[head], scores[head]);
        } else {
            store_head<kOuter, false, false>(strips, factors[0], scores[0]);
            if constexpr (kConfig.row_tiles > 1)
                if (heads > 1) store_head<kOuter, false, false>(strips, factors[1], scores[1]);
        }
    }
    __device__ __forceinline__ void store_scores(const float (&products)[32], int ready, int slot, int heads) const {
        Resets resets = shared.ends[ready][0].resets;
        if (heads > 1) {
            const Resets others = shared.ends[ready][kConfig.row_tiles - 1].resets;
            resets = others > resets ? others : resets;
        }
        const bool outer = warp < 2;
        Strips strips;
        choose_strips(strips, products, outer);
        if (outer)
            store_heads<true>(strips, ready, slot, heads, resets);
        else
            store_heads<false>(strips, ready, slot, heads, resets);
    }
    __device__ __forceinline__ void clear_scores() const {
        auto* vectors = reinterpret_cast<uint4*>(shared.scores);
        for (int i = thread; i < static_cast<int>(sizeof(shared.scores) / sizeof(uint4)); i += kWarpgroup) vectors[i] = {};
        warpgroup_sync();
    }

    __device__ __forceinline__ void run() {
        clear_scores();
        [[maybe_unused]] InputsRole<kConfig> inputs(shared, args);
        if constexpr (!kConfig.has_inputs_role()) inputs.begin();
        const int heads = work.heads();
#pragma unroll 1
        for (int step = 0; step < work.steps; ++step) {
            find_lane();
            const PipelineStage<kStages> current(step);
            const PipelineStage<kSlots> slot(step);
            const PipelineStage<kFactorSlots> ready(step);
            const int chunk = work.chunk_at(step);
            auto& stage = stage_at(shared, current.index);
            barrier(shared.stage_full[current.index]).wait(current.parity);
            if (has_tail(args, work, chunk)) [[unlikely]]
                clear_tail(chunk, current.index);
            if (work.outputs_at(step)) {
                float products[32];
                multiply(products, stage);
                barrier(shared.factors_full[ready.index]).wait(ready.parity);
                barrier(shared.scores_empty[slot.index]).wait(slot.parity ^ 1);
                wait_for_product(products);
                store_scores(products, ready.index, slot.index, heads);
                cutlass::arch::fence_view_async_shared();
            } else {
                barrier(shared.factors_full[ready.index]).wait(ready.parity);
                barrier(shared.scores_empty[slot.index]).wait(slot.parity ^ 1);
            }
            barrier(shared.scores_full[slot.index]).arrive();
            if constexpr (!kConfig.has_inputs_role()) inputs.follow(step);
        }
    }
};

}  // namespace gdn_cuda::ssd
