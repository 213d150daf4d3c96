// Summaries of segments: a segment maps a state S to S M + L. Where L and M are kept, how they reach shared memory, and how a
// pass of a block follows them from segment to segment.
//
// One thread waits for each summary and has its M loaded, as far ahead of the value warpgroups as there is room, so that
// neither its wait nor TMA's latency lies between two products. M comes in pieces of 64 rows, numbered through all links of the
// pass, each in the key and query tiles of the next stage: M rounded to bf16, and the rounding residual. `loaded` tells that a
// piece has arrived, `done` that all have read it.
#pragma once

#include <gdn_cuda/kernels/chunked/state.cuh>

namespace gdn_cuda::gdn {

__device__ __forceinline__ unsigned* have_state(const PrefillLinks& links, i64 link) {
    return links.have_state + link * gridDim.x + blockIdx.x;
}
template <PrefillConfig kConfig>
__device__ __forceinline__ void await_state(const PrefillLinks& links, i64 link) {
    wait_for_count(have_state(links, link), kConfig.value_groups);
}
template <PrefillConfig kConfig>
__device__ __forceinline__ void await_summary(const PrefillLinks& links, i64 link, unsigned blocks) {
    wait_for_count(links.have_summary + link, blocks * kConfig.value_groups);
}

__device__ __forceinline__ int links_to_follow(const PrefillWork& work) {
    return work.group_links + work.segment_links;
}
// Where the pass's link `link` is among all. The links of groups come first.
__device__ __forceinline__ i64 link_to_follow(const PrefillWork& work, int link) {
    return link < work.group_links ? work.group_link + link : work.segment_link + (link - work.group_links);
}
template <PrefillConfig kConfig>
struct PieceOfMap : PipelineStage<kConfig.stages> {
    __device__ __forceinline__ PieceOfMap(int link, int part)
        : PipelineStage<kConfig.stages>(link * kConfig.key_tiles() + part) {}
};

// Blocks that write a row tile of a group's L, and those that write one of its M.
template <PrefillConfig kConfig>
__device__ __forceinline__ unsigned blocks_of_group(const PrefillArgs& args) {
    const unsigned of_transfer = (args.recurrence.dk + kConfig.rows_per_block() - 1) / kConfig.rows_per_block();
    return gridDim.x + min(gridDim.x, of_transfer);
}

// By one thread.
template <PrefillConfig kConfig>
__device__ __forceinline__ void load_maps(PrefillSharedPlan<kConfig>& shared, const PrefillArgs& args) {
    const PrefillWork& work = shared.work;
    cutlass::arch::fence_view_async_shared();  // earlier passes wrote and read what is loaded now
#pragma unroll 1
    for (int link = 0; link < links_to_follow(work); ++link) {
        const i64 of_all = link_to_follow(work, link);
        await_summary<kConfig>(args.links, of_all, link < work.group_links ? blocks_of_group<kConfig>(args) : gridDim.x);
        fence_proxy_async_global();
#pragma unroll 1
        for (int part = 0; part < kConfig.key_tiles(); ++part) {
            const PieceOfMap<kConfig> piece(link, part);
            auto& stage = shared.stages[piece.index];
            Barrier& loaded = barrier(shared.loaded[piece.index]);
            barrier(shared.done[piece.index]).wait(piece.parity ^ 1);
            loaded.arrive_and_expect_tx(2 * kConfig.key_tiles() * static_cast<int>(sizeof(SwizzledTile)));
            for (int columns = 0; columns < kConfig.key_tiles(); ++columns) {
                const TileAt at{columns * kTileElements, 0, part * kChunk, static_cast<int>(of_all)};
                tma_load(stage.key[columns].bytes, args.transfers, at, loaded);
                tma_load(stage.query[columns].bytes, args.transfers, {at.element, 1, at.token, at.batch}, loaded);
            }
        }
    }
}

// The owner's rows of a summary's L, and of M, are padded to whole blocks of rows and columns: no bounds checks.
template <class Owner>
__device__ __forceinline__ float2* linked_state(const Owner& own, i64 link) {
    const i64 rows = static_cast<i64>(gridDim.x) * Owner::kConfig.rows_per_block();
    return reinterpret_cast<float2*>(own.args.links.states + (link * rows + own.my_row()) * Owner::kConfig.head_k) + own.t;
}
// A pair of elements in the owner's rows of L, in float2 from its first.
template <int kHeadK>
__device__ constexpr int pair_of_state(int i) {
    constexpr int kToNextEight = 8 * kHeadK / 2;  // rows
    return i % 4 / 2 * kToNextEight + i / 4 * 4;
}
template <class Owner>
__device__ __forceinline__ void load_linked(Owner& own, i64 link) {
    constexpr int kHeadK = Owner::kConfig.head_k;
    const float2* from = linked_state(own, link);
#pragma unroll
    for (int i = 0; i < kHeadK / 2; i += 2) {
        const float2 pair = from[pair_of_state<kHeadK>(i)];
        own.state[i] = pair.x;
        own.state[i + 1] = pair.y;
    }
}
template <class Owner>
__device__ __forceinline__ void store_linked(const Owner& own, i64 link) {
    constexpr int kHeadK = Owner::kConfig.head_k;
    float2* to = linked_state(own, link);
#pragma unroll
    for (int i = 0; i < kHeadK / 2; i += 2) to[pair_of_state<kHeadK>(i)] = {own.state[i], own.state[i + 1]};
}
// A thread's pairs of elements of M, rounded; head_k / 2 further, the rounding residuals.
template <class Owner>
__device__ __forceinline__ unsigned* transfer_rows(const Owner& own, i64 link) {
    constexpr int kRows = Owner::kConfig.key_tiles() * kChunk;
    return static_cast<unsigned*>(own.args.links.transfers) + (link * kRows + own.my_row()) * Owner::kConfig.head_k + own.t;
}
template <int kHeadK>
__device__ constexpr int pair_of_transfer(int i) {
    return i % 4 / 2 * 16 * (kHeadK / 2) + i / 4 * 4;
}
template <class Owner>
__device__ __forceinline__ void store_transfer(const Owner& own) {
    constexpr int kHeadK = Owner::kConfig.head_k;
    unsigned* to = transfer_rows(own, own.work.link);
#pragma unroll
    for (int i = 0; i < kHeadK / 2; i += 2) {
        const unsigned rounded = pack<DType::bf16>(own.state[i], own.state[i + 1]);
        unsigned* at = to + pair_of_transfer<kHeadK>(i);
        at[0] = rounded;
        at[kHeadK / 2] = pack_rest<DType::bf16>(own.state[i], own.state[i + 1], rounded);
    }
}
template <class Owner>
__device__ __forceinline__ void load_transfer(Owner& own, i64 link) {
    constexpr int kHeadK = Owner::kConfig.head_k;
    const unsigned* from = transfer_rows(own, link);
#pragma unroll
    for (int i = 0; i < kHeadK / 2; i += 2) {
        const unsigned* at = from + pair_of_transfer<kHeadK>(i);
        const float2 rounded = unpack<DType::bf16>(at[0]), rest = unpack<DType::bf16>(at[kHeadK / 2]);
        own.state[i] = rounded.x + rest.x;
        own.state[i + 1] = rounded.y + rest.y;
    }
}

template <class Owner>
__device__ __forceinline__ void signal_summary_written(const Owner& own) {
    const PrefillWork& work = own.work;
    if (!Owner::kConfig.linked || work.to < 0 || own.is_pass(PrefillPass::link)) return;
    own.warpgroup_sync();
    if (own.thread > 0) return;
    red_release(own.is_pass(PrefillPass::outputs) ? have_state(own.args.links, work.to)
                                                  : own.args.links.have_summary + work.to);
}

// The stage that holds a piece of M, once it is there.
template <class Owner>
__device__ __forceinline__ const auto& await_map(const Owner& own, int link, int part) {
    const PieceOfMap<Owner::kConfig> piece(link, part);
    barrier(own.shared.loaded[piece.index]).wait(piece.parity);
    return own.shared.stages[piece.index];
}
// After a reset M is 0, and S M must be 0 even where S is not finite.
template <class Owner>
__device__ __forceinline__ void clear_state_if_transfer_is_zero(Owner& own, int link) {
    constexpr PrefillConfig kConfig = Owner::kConfig;
    float sums[4]{};  // NaN if an element is not finite
#pragma unroll
    for (int i = 0; i < kConfig.head_k / 2; ++i) sums[i % 4] = fmaf(own.state[i], 0.f, sums[i % 4]);
    if (!own.any_of_warpgroup(isnan(sums[0] + sums[1] + (sums[2] + sums[3])))) return;
    constexpr int kPieces = sizeof(SwizzledTile) / sizeof(uint4);
    unsigned bits = 0;
#pragma unroll 1
    for (int part = 0; part < kConfig.key_tiles(); ++part) {
        const auto* tiles = reinterpret_cast<const uint4*>(await_map(own, link, part).key[0].bytes);
#pragma unroll 1
        for (int i = own.thread; i < kConfig.key_tiles() * kPieces; i += kWarpgroup) {
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
__device__ __forceinline__ void apply_link(Owner& own, int link) {
    constexpr PrefillConfig kConfig = Owner::kConfig;
    constexpr int kPieces = kConfig.key_tiles(), kSteps = Owner::kStateSteps;
    clear_state_if_transfer_is_zero(own, link);
    unsigned rounded[kSteps][4], rest[kSteps][4];
    round_to_operand<DType::bf16>(rounded, rest, own.state);
    await_map(own, link, 0);  // the thread that has loaded it had waited for L, too
    if (own.is_pass(PrefillPass::group_transfer))
        clear_fragment(own.state);
    else
        load_linked(own, link_to_follow(own.work, link));
    await_map(own, link, kPieces - 1);
    cute::warpgroup_arrive();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
        const auto& stage = own.shared.stages[PieceOfMap<kConfig>(link, step / kTokenSteps).index];
        const auto m = tile_operand(stage.key, sizeof(SwizzledTile)) + mn_major_step(step % kTokenSteps),
                   m_rest = tile_operand(stage.query, sizeof(SwizzledTile)) + mn_major_step(step % kTokenSteps);
        Product<DType::bf16, kConfig.head_k, false>::run(own.state, rest[step], m, true);
        Product<DType::bf16, kConfig.head_k, false>::run(own.state, rounded[step], m_rest, true);
        Product<DType::bf16, kConfig.head_k, false>::run(own.state, rounded[step], m, true);
        if ((step + 1) % kTokenSteps == 0 || step + 1 == kSteps) cute::warpgroup_commit_batch();
    }
    cute::warpgroup_wait<kPieces - 1>();
    own.release(PieceOfMap<kConfig>(link, 0).index);
    wait_for_product(own.state);
    if (kPieces > 1) own.release(PieceOfMap<kConfig>(link, kPieces - 1).index);
}
// From the state after the first segment to the one before this segment. Every block repeats the links before its own: all
// wait for the same summaries anyway, and the state stays in registers. Or from a group's first segment to its last.
template <class Owner>
__device__ __forceinline__ void follow_links(Owner& own) {
#pragma unroll 1
    for (int link = 0; link < links_to_follow(own.work); ++link) apply_link(own, link);
}
template <class Owner>
__device__ __forceinline__ void skip_links(const Owner& own) {
#pragma unroll 1
    for (int link = 0; link < links_to_follow(own.work); ++link)
#pragma unroll 1
        for (int part = 0; part < Owner::kConfig.key_tiles(); ++part) {
            await_map(own, link, part);
            own.release(PieceOfMap<Owner::kConfig>(link, part).index);
        }
}
template <class Owner>
__device__ __forceinline__ bool follows_links(const Owner& own) {
    return Owner::kConfig.linked && links_to_follow(own.work) > 0;
}

}  // namespace gdn_cuda::gdn
