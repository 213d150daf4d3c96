// The scores role: one warpgroup that multiplies C B^T of a chunk once for the group, and forms M of each head from it.
#pragma once

#include <gdn_cuda/kernels/chunked/token_products.cuh>
#include <gdn_cuda/kernels/common/shared.cuh>
#include <gdn_cuda/kernels/ssd/prefill/inputs.cuh>

namespace gdn_cuda::ssd {

template <SsdConfig kConfig>
struct ScoresRole : Lane {
    using Plan = SsdPlan<kConfig>;
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
    // M = C B^T exp(G_i - G_j) δ_j up to the diagonal. kResets: a decay of 0 is a select, which stops infinities and NaN.
    template <bool kResets>
    __device__ __forceinline__ void store_scores(const float (&products)[32], const typename Plan::Factors& factors,
                                                 SwizzledTile& scores) const {
        const float row[2] = {factors.gate[16 * warp + g], factors.gate[16 * warp + g + 8]};
        gdn::store_lower<kConfig.io, false>(*this, scores, 0, [&](int i) {
            const float2 gate = pair_at(&factors.gate[8 * (i / 4) + 2 * t]), delta = pair_at(&factors.delta[8 * (i / 4) + 2 * t]);
            const float decay = exp2_fast(row[i / 2 % 2] - (i % 2 == 0 ? gate.x : gate.y));
            const float score = products[i] * decay * (i % 2 == 0 ? delta.x : delta.y);
            return kResets && decay == 0.f ? 0.f : score;
        });
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
            if (step >= work.first_output) {
                float products[32];
                start_group_products(products, stage.C, stage.B);
                if constexpr (!kConfig.has_inputs_role()) inputs.before_scores(step);
                barrier(shared.factors_full[ready.index]).wait(ready.parity);
                barrier(shared.scores_empty[slot.index]).wait(slot.parity ^ 1);
                wait_for_product(products);
#pragma unroll 1
                for (int i = 0; i < work.tiles; ++i) {
                    if (work.row_tiles[i].scores != i) continue;
                    const auto& factors = shared.factors[ready.index][i];
                    SwizzledTile& scores = shared.scores[slot.index][i];
                    if (shared.ends[ready.index][i].resets)
                        store_scores<true>(products, factors, scores);
                    else
                        store_scores<false>(products, factors, scores);
                }
                cutlass::arch::fence_view_async_shared();
            } else {
                if constexpr (!kConfig.has_inputs_role()) inputs.before_scores(step);
                barrier(shared.factors_full[ready.index]).wait(ready.parity);
                barrier(shared.scores_empty[slot.index]).wait(slot.parity ^ 1);
            }
            barrier(shared.scores_full[slot.index]).arrive();
            if constexpr (!kConfig.has_inputs_role()) inputs.after_scores(step);
        }
    }
    __device__ __forceinline__ static void start_group_products(float (&products)[32], const SwizzledTile* C,
                                                                const SwizzledTile* B) {
        const auto left = tile_operand(C, 0), right = tile_operand(B, 0);
        cute::warpgroup_arrive();
#pragma unroll
        for (int step = 0; step < kConfig.states / 16; ++step)
            Product<kConfig.io, 64, true>::run(products, left + k_major_step(step), right + k_major_step(step), step > 0);
        cute::warpgroup_commit_batch();
    }
};

}  // namespace gdn_cuda::ssd
