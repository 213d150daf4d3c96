// The maps S M + L that a pass of gdn/prefill follows from segment to segment (prefill_segments.cuh), as they reach shared
// memory. One thread waits for each map and has its M loaded, as far ahead of the value warpgroups as there is room, so that
// neither its wait nor TMA's latency lies between two products.
//
// M comes in pieces of 64 rows, numbered through all links of the pass, each in the key and query tiles of the next stage: M
// rounded to bf16, and the rounding residual. `loaded` tells that a piece has arrived, `done` that all have read it.
#pragma once

#include <gdn_cuda/kernels/chunked/segments.cuh>

namespace gdn_cuda::gdn {

__device__ __forceinline__ int links_to_follow(const PrefillWork& work) {
    return work.group_links + work.segment_links;
}
// Where the pass's link `link` is among all. The links of groups come first.
__device__ __forceinline__ i64 link_to_follow(const PrefillWork& work, int link) {
    return link < work.group_links ? work.group_link + link : work.segment_link + (link - work.group_links);
}
template <PrefillConfig kConfig>
struct PieceOfMap : ChunkStage<kConfig.stages> {
    __device__ __forceinline__ PieceOfMap(int link, int part) : ChunkStage<kConfig.stages>(link * kConfig.key_tiles() + part) {}
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
            auto& stage = shared.stages[piece.stage];
            Barrier& loaded = barrier(shared.loaded[piece.stage]);
            barrier(shared.done[piece.stage]).wait(piece.parity ^ 1);
            loaded.arrive_and_expect_tx(2 * kConfig.key_tiles() * static_cast<int>(sizeof(PrefillTile)));
            for (int columns = 0; columns < kConfig.key_tiles(); ++columns) {
                const TileAt at{columns * kTileElements, 0, part * kChunk, static_cast<int>(of_all)};
                tma_load(stage.key[columns].bytes, args.transfers, at, loaded);
                tma_load(stage.query[columns].bytes, args.transfers, {at.element, 1, at.token, at.batch}, loaded);
            }
        }
    }
}

}  // namespace gdn_cuda::gdn
