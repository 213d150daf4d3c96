// Summaries of segments: a segment maps a state S to S M + L. Where L and M are kept, how they reach shared memory, and how a
// pass of a block follows them from segment to segment.
//
// One thread waits for each summary and has its M loaded, as far ahead of the value warpgroups as there is room, so that
// neither its wait nor TMA's latency is between two products. M comes in parts of 64 rows, counted through all summaries of the
// pass, each in the key and query tiles of the next stage: M rounded to bf16, and the rounding residual. `stage_full` tells
// that a part has arrived, `stage_empty` that all have read it.
#pragma once

#include <gdn_cuda/kernels/chunked/state.cuh>

namespace gdn_cuda::gdn {

__device__ __forceinline__ unsigned* have_state(const Summaries& summaries, i64 summary) {
    return summaries.have_state + summary * gridDim.x + blockIdx.x;
}
template <ChunkedConfig kConfig>
__device__ __forceinline__ void await_state(const Summaries& summaries, i64 summary) {
    wait_for_count(have_state(summaries, summary), kConfig.value_groups);
}
template <ChunkedConfig kConfig>
__device__ __forceinline__ void await_summary(const Summaries& summaries, i64 summary, unsigned blocks) {
    wait_for_count(summaries.have_summary + summary, blocks * kConfig.value_groups);
}

template <ChunkedConfig kConfig>
struct PartOfTransition : PipelineStage<kConfig.stages> {
    __device__ __forceinline__ PartOfTransition(int summary, int part)
        : PipelineStage<kConfig.stages>(summary * kConfig.key_tiles() + part) {}
};

// Blocks that write a row tile of a group's L, and those that write one of its M.
template <ChunkedConfig kConfig>
__device__ __forceinline__ unsigned blocks_of_group(const ChunkedArgs& args) {
    const unsigned transition_row_tiles = (args.call.dk + kConfig.rows_per_block() - 1) / kConfig.rows_per_block();
    return gridDim.x + min(gridDim.x, transition_row_tiles);
}

// By one thread.
template <ChunkedConfig kConfig>
__device__ __forceinline__ void load_transitions(ChunkedPlan<kConfig>& shared, const ChunkedArgs& args) {
    const PassSummaries& summaries = shared.work.summaries;
    cutlass::arch::fence_view_async_shared();  // earlier passes wrote and read what is loaded now
#pragma unroll 1
    for (int summary = 0; summary < summaries.count(); ++summary) {
        const i64 index = summaries.index_of(summary);
        await_summary<kConfig>(args.summaries, index, summary < summaries.groups ? blocks_of_group<kConfig>(args) : gridDim.x);
        fence_proxy_async_global();
#pragma unroll 1
        for (int part = 0; part < kConfig.key_tiles(); ++part) {
            const PartOfTransition<kConfig> at_stage(summary, part);
            auto&& stage = tiles_of<kConfig>(shared, part, at_stage.index);
            Barrier& full = barrier(shared.stage_full[at_stage.index]);
            barrier(shared.stage_empty[at_stage.index]).wait(at_stage.parity ^ 1);
            full.arrive_and_expect_tx(2 * kConfig.key_tiles() * static_cast<int>(sizeof(SwizzledTile)));
            for (int columns = 0; columns < kConfig.key_tiles(); ++columns) {
                const TileAt at{columns * kTileElements, 0, part * kChunk, static_cast<int>(index)};
                tma_load(stage.key[columns].bytes, args.transitions, at, full);
                tma_load(stage.query[columns].bytes, args.transitions, {at.element, 1, at.token, at.batch}, full);
            }
        }
    }
}

// The owner's rows of a summary's L, and of M, are padded to whole blocks of rows and columns: no bounds checks.
template <class Owner>
__device__ __forceinline__ float2* chained_state(const Owner& own, i64 summary) {
    const i64 rows = static_cast<i64>(gridDim.x) * Owner::kConfig.rows_per_block();
    return reinterpret_cast<float2*>(own.args.summaries.states + (summary * rows + own.my_row()) * Owner::kConfig.head_k) +
           own.t;
}
// A pair of elements in the owner's rows of L, in float2 from its first.
template <int kHeadK>
__device__ constexpr int pair_of_state(int i) {
    constexpr int kToNextEight = 8 * kHeadK / 2;  // rows
    return i % 4 / 2 * kToNextEight + i / 4 * 4;
}
template <class Owner>
__device__ __forceinline__ void load_chained_state(Owner& own, i64 summary) {
    constexpr int kHeadK = Owner::kConfig.head_k;
    const float2* from = chained_state(own, summary);
#pragma unroll
    for (int i = 0; i < kHeadK / 2; i += 2) {
        const float2 pair = from[pair_of_state<kHeadK>(i)];
        own.state[i] = pair.x;
        own.state[i + 1] = pair.y;
    }
}
template <class Owner>
__device__ __forceinline__ void store_chained_state(const Owner& own, i64 summary) {
    constexpr int kHeadK = Owner::kConfig.head_k;
    float2* to = chained_state(own, summary);
#pragma unroll
    for (int i = 0; i < kHeadK / 2; i += 2) to[pair_of_state<kHeadK>(i)] = {own.state[i], own.state[i + 1]};
}
// A thread's pairs of elements of M, rounded; head_k / 2 further, the rounding residuals.
template <class Owner>
__device__ __forceinline__ unsigned* transition_rows(const Owner& own, i64 summary) {
    constexpr int kRows = Owner::kConfig.key_tiles() * kChunk;
    return static_cast<unsigned*>(own.args.summaries.transitions) + (summary * kRows + own.my_row()) * Owner::kConfig.head_k +
           own.t;
}
template <int kHeadK>
__device__ constexpr int pair_of_transition(int i) {
    return i % 4 / 2 * 16 * (kHeadK / 2) + i / 4 * 4;
}
template <class Owner>
__device__ __forceinline__ void store_transition(const Owner& own) {
    constexpr int kHeadK = Owner::kConfig.head_k;
    unsigned* to = transition_rows(own, own.work.states.summary);
#pragma unroll
    for (int i = 0; i < kHeadK / 2; i += 2) {
        const unsigned rounded = pack<DType::bf16>(own.state[i], own.state[i + 1]);
        unsigned* at = to + pair_of_transition<kHeadK>(i);
        at[0] = rounded;
        at[kHeadK / 2] = pack_residual<DType::bf16>(own.state[i], own.state[i + 1], rounded);
    }
}
template <class Owner>
__device__ __forceinline__ void load_transition(Owner& own, i64 summary) {
    constexpr int kHeadK = Owner::kConfig.head_k;
    const unsigned* from = transition_rows(own, summary);
#pragma unroll
    for (int i = 0; i < kHeadK / 2; i += 2) {
        const unsigned* at = from + pair_of_transition<kHeadK>(i);
        const float2 rounded = unpack<DType::bf16>(at[0]), residual = unpack<DType::bf16>(at[kHeadK / 2]);
        own.state[i] = rounded.x + residual.x;
        own.state[i + 1] = rounded.y + residual.y;
    }
}

template <class Owner>
__device__ __forceinline__ void signal_summary_written(const Owner& own) {
    const ChunkedWork& work = own.work;
    if (!Owner::kConfig.chained || work.states.to < 0 || own.is_pass(ChunkedPass::chain)) return;
    own.warpgroup_sync();
    if (own.thread > 0) return;
    red_release(own.is_pass(ChunkedPass::outputs) ? have_state(own.args.summaries, work.states.to)
                                                  : own.args.summaries.have_summary + work.states.to);
}

// The stage that holds a part of M, once it is there.
template <class Owner>
__device__ __forceinline__ decltype(auto) await_transition(const Owner& own, int summary, int part) {
    const PartOfTransition<Owner::kConfig> at_stage(summary, part);
    barrier(own.shared.stage_full[at_stage.index]).wait(at_stage.parity);
    return tiles_of<Owner::kConfig>(own.shared, part, at_stage.index);
}
// After a reset M is 0, and S M must be 0 even where S is not finite.
template <class Owner>
__device__ __forceinline__ void clear_state_if_transition_is_zero(Owner& own, int summary) {
    constexpr ChunkedConfig kConfig = Owner::kConfig;
    float sums[4]{};  // NaN if an element is not finite
#pragma unroll
    for (int i = 0; i < kConfig.head_k / 2; ++i) sums[i % 4] = fmaf(own.state[i], 0.f, sums[i % 4]);
    if (!own.any_of_warpgroup(isnan(sums[0] + sums[1] + (sums[2] + sums[3])))) return;
    constexpr int kVectors = sizeof(SwizzledTile) / sizeof(uint4);
    unsigned bits = 0;
#pragma unroll 1
    for (int part = 0; part < kConfig.key_tiles(); ++part) {
        const auto* tiles = reinterpret_cast<const uint4*>(await_transition(own, summary, part).key[0].bytes);
#pragma unroll 1
        for (int i = own.thread; i < kConfig.key_tiles() * kVectors; i += kWarpgroup) {
            const uint4 x = tiles[i];
            bits |= (x.x | x.y | x.z | x.w) & 0x7fff7fffu;
        }
    }
    if (own.any_of_warpgroup(bits != 0)) return;
    clear_fragment(own.state);
}
// Replaces S by S M + L, or rows of another M by their product. In bf16 for every input type: fp16 would flush a decay of
// 2^-25 to 0.
template <class Owner>
__device__ __forceinline__ void apply_summary(Owner& own, int summary) {
    constexpr ChunkedConfig kConfig = Owner::kConfig;
    constexpr int kParts = kConfig.key_tiles(), kSteps = Owner::kStateSteps;
    clear_state_if_transition_is_zero(own, summary);
    unsigned rounded[kSteps][4], residual[kSteps][4];
    round_to_operand<DType::bf16>(rounded, residual, own.state);
    await_transition(own, summary, 0);  // the thread that has loaded it had waited for L, too
    if (own.is_pass(ChunkedPass::group_transition))
        clear_fragment(own.state);
    else
        load_chained_state(own, own.work.summaries.index_of(summary));
    await_transition(own, summary, kParts - 1);
    cute::warpgroup_arrive();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
        const int part = step / kTokenSteps;
        const auto& stage = tiles_of<Owner::kConfig>(own.shared, part, PartOfTransition<kConfig>(summary, part).index);
        const auto m = tile_operand(stage.key, sizeof(SwizzledTile)) + mn_major_step(step % kTokenSteps),
                   m_residual = tile_operand(stage.query, sizeof(SwizzledTile)) + mn_major_step(step % kTokenSteps);
        Product<DType::bf16, kConfig.head_k, false>::run(own.state, residual[step], m, true);
        Product<DType::bf16, kConfig.head_k, false>::run(own.state, rounded[step], m_residual, true);
        Product<DType::bf16, kConfig.head_k, false>::run(own.state, rounded[step], m, true);
        if ((step + 1) % kTokenSteps == 0 || step + 1 == kSteps) cute::warpgroup_commit_batch();
    }
    cute::warpgroup_wait<kParts - 1>();
    own.release(PartOfTransition<kConfig>(summary, 0).index);
    wait_for_product(own.state);
    if (kParts > 1) own.release(PartOfTransition<kConfig>(summary, kParts - 1).index);
}
// From the state after the first segment to the one before this segment. Every block applies all summaries before its own: all
// wait for the same summaries anyway, and the state stays in registers. Or from a group's first segment to its last.
template <class Owner>
__device__ __forceinline__ void apply_summaries(Owner& own) {
#pragma unroll 1
    for (int summary = 0; summary < own.work.summaries.count(); ++summary) apply_summary(own, summary);
}
template <class Owner>
__device__ __forceinline__ void skip_summaries(const Owner& own) {
#pragma unroll 1
    for (int summary = 0; summary < own.work.summaries.count(); ++summary)
#pragma unroll 1
        for (int part = 0; part < Owner::kConfig.key_tiles(); ++part) {
            await_transition(own, summary, part);
            own.release(PartOfTransition<Owner::kConfig>(summary, part).index);
        }
}
template <class Owner>
__device__ __forceinline__ bool applies_summaries(const Owner& own) {
    return Owner::kConfig.chained && own.work.summaries.count() > 0;
}

}  // namespace gdn_cuda::gdn
