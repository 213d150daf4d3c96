// The scores role: one warpgroup that multiplies C B^T of a chunk once for the group, and forms M of each head from it.
#pragma once

#include <gdn_cuda/kernels/chunked/token_products.cuh>
#include <gdn_cuda/kernels/common/shared.cuh>
#include <gdn_cuda/kernels/hopper/tile_products.cuh>
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

    // Zeroes what a chunk's tiles have past its end: the next sequence's tokens, which may be infinite or NaN, or the next
    // chunk's.
    __device__ __forceinline__ void clear_tail(int count, int stage_index) const {
        auto& stage = stage_at(shared, stage_index);
        const int tiles = kConfig.state_tiles() + work.tiles;
#pragma unroll 1
        for (int i = thread; i < (kChunk - count) * tiles * 8; i += kWarpgroup) {
            const int row = count + i / (tiles * 8), tile = i % (tiles * 8) / 8;
            SwizzledTile& cleared = tile < kConfig.state_tiles() ? stage.B[tile] : stage.x[tile - kConfig.state_tiles()];
            store_shared(row_vector(tile_row(cleared.bytes, row), i % 8), uint4{});
        }
        cutlass::arch::fence_view_async_shared();
        warpgroup_sync();
    }
    // The products of the warp's 16 x 16 block on the diagonal. Selected, so that the code for it exists once: all that a step
    // executes should fit the instruction cache.
    __device__ __forceinline__ void select_diagonal(float (&own)[8], const float (&products)[32]) const {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            own[i] = products[i];
#pragma unroll
            for (int block = 1; block < 4; ++block)
                if (warp == block) own[i] = products[8 * block + i];
        }
    }
    // M = C B^T exp(G_i - G_j) δ_j up to the diagonal, of all heads, 16 x 16 elements at a time. kResets: where a decay is 0, M
    // is too, which stops infinities and NaN.
    template <bool kResets, int kHeads>
    __device__ __forceinline__ void store_scores(const float (&products)[32], const Factors (&factors)[kConfig.row_tiles],
                                                 SwizzledTile (&scores)[kConfig.row_tiles]) const {
        const unsigned to = tile_row(scores[0].bytes, 16 * warp + lane % 16);
        float row[kHeads][2];
#pragma unroll
        for (int head = 0; head < kHeads; ++head)
            row[head][0] = factors[head].row[16 * warp + g], row[head][1] = factors[head].row[16 * warp + g + 8];
#pragma unroll
        for (int n = 0; n < 8; n += 2) {
            if (n / 2 >= warp) break;
#pragma unroll
            for (int head = 0; head < kHeads; ++head) {
                const float between = factors[head].between[n / 2 + 1 < warp ? warp + n / 2 - 1 : 0];
                const float from[2] = {row[head][0] * between, row[head][1] * between};
                unsigned pairs[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int column = 8 * n + 2 * t + i / 2 * 8, at = 4 * n + 2 * i;
                    const float2 added = pair_at(&factors[head].added[column]);
                    float2 score = {products[at] * (from[i % 2] * added.x), products[at + 1] * (from[i % 2] * added.y)};
                    if constexpr (kResets) {
                        const float2 decay = pair_at(&factors[head].column[column]);
                        score.x = from[i % 2] * decay.x == 0.f ? 0.f : score.x;
                        score.y = from[i % 2] * decay.y == 0.f ? 0.f : score.y;
                    }
                    pairs[i] = pack<kConfig.io>(score.x, score.y);
                }
                stmatrix_x4(row_vector(to, n + lane / 16) + head * sizeof(SwizzledTile), pairs[0], pairs[1], pairs[2],
                            pairs[3]);
            }
        }
        float own[8];
        select_diagonal(own, products);
#pragma unroll
        for (int head = 0; head < kHeads; ++head) {
            const Neighbours near(factors[head], *this);
            gdn::store_diagonal<kConfig.io>(*this, scores[head], [&](int i) {
                const float decay = near.decay(i), score = own[i] * (decay * near.delta[i / 4 * 2 + i % 2]);
                return kResets && decay == 0.f ? 0.f : score;
            });
        }
    }
    // What decays between tokens of the warp's block of 16 need. Loaded at once: loads under the condition that a decay is not
    // 0 would wait for each other.
    struct Neighbours {
        float row[2], gate[4], delta[4];

        __device__ __forceinline__ Neighbours(const Factors& factors, const Lane& lane) {
            const int first = 16 * lane.warp, column = first + 2 * lane.t;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                row[i] = opaque(factors.steps.gate[first + lane.g + 8 * i]);
                const float2 gates = pair_at(&factors.steps.gate[column + 8 * i]),
                             deltas = pair_at(&factors.steps.delta[column + 8 * i]);
                gate[2 * i] = opaque(gates.x), gate[2 * i + 1] = opaque(gates.y);
                delta[2 * i] = opaque(deltas.x), delta[2 * i + 1] = opaque(deltas.y);
            }
        }
        __device__ __forceinline__ float decay(int i) const { return exp2_fast(row[i / 2 % 2] - gate[i / 4 * 2 + i % 2]); }
    };
    // Where tokens decay and grow: factors of a decay may overflow where it does not.
    __device__ __forceinline__ void store_mixed_scores(const float (&products)[32], const Factors& factors,
                                                       SwizzledTile& scores) const {
        gdn::store_lower<kConfig.io, false>(*this, scores, 0, [&](int i) {
            const int column = 8 * (i / 4) + 2 * t + i % 2;
            const float decay = exp2_fast(factors.steps.gate[16 * warp + g + i / 2 % 2 * 8] - factors.steps.gate[column]);
            return decay == 0.f ? 0.f : products[i] * decay * factors.steps.delta[column];
        });
    }
    __device__ __forceinline__ void store_scores(const float (&products)[32], int ready, int slot, int heads) const {
        const auto& factors = shared.factors[ready];
        auto& scores = shared.scores[slot];
        Resets resets = shared.ends[ready][0].resets;
        if (heads > 1) {
            const Resets others = shared.ends[ready][kConfig.row_tiles - 1].resets;
            resets = others > resets ? others : resets;
        }
        if (resets == Resets::mixed) [[unlikely]] {
#pragma unroll 1
            for (int head = 0; head < heads; ++head) store_mixed_scores(products, factors[head], scores[head]);
        } else if (heads == 1) {
            resets == Resets::none ? store_scores<false, 1>(products, factors, scores)
                                   : store_scores<true, 1>(products, factors, scores);
        } else if constexpr (kConfig.row_tiles > 1) {
            resets == Resets::none ? store_scores<false, 2>(products, factors, scores)
                                   : store_scores<true, 2>(products, factors, scores);
        }
    }
    __device__ __forceinline__ void clear_scores() const {
        auto* vectors = reinterpret_cast<uint4*>(shared.scores);
        for (int i = thread; i < static_cast<int>(sizeof(shared.scores) / sizeof(uint4)); i += kWarpgroup) vectors[i] = {};
        warpgroup_sync();
    }

    __device__ __forceinline__ void run() {
        if constexpr (kConfig.outputs) clear_scores();
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
            barrier(shared.stage_full[current.index]).wait(current.parity);
            if (has_tail(args, work, chunk)) [[unlikely]]
                clear_tail(tokens_of(args, work, chunk).count, current.index);
            const auto wait = [&] {
                barrier(shared.factors_full[ready.index]).wait(ready.parity);
                barrier(shared.scores_empty[slot.index]).wait(slot.parity ^ 1);
            };
            if (!outputs_at<kConfig>(work, step)) {
                wait();
            } else if constexpr (kConfig.outputs) {
                const auto& stage = stage_at(shared, current.index);
                float products[32];
                start_row_products<kConfig.io, kConfig.states>(products, stage.C, stage.B);
                wait();
                wait_for_product(products);
                store_scores(products, ready.index, slot.index, heads);
                cutlass::arch::fence_view_async_shared();
            }
            barrier(shared.scores_full[slot.index]).arrive();
            if constexpr (!kConfig.has_inputs_role()) inputs.follow(step);
        }
    }
};

}  // namespace gdn_cuda::ssd
