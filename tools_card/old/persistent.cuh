// Persistent blocks. A work tile is an unsplit sequence, a value head and the rows of a block. The pipeline of chunks goes on
// from one to the next, so that helper roles load and prepare the next tile's first chunks while value warpgroups finish the
// last ones and exchange the state. The host gives them padded batches without checkpoints only.
//
// Work tiles are planned ahead, in eight slots, by the inverse at a tile's end. A whole warp plans: with a branch of one lane
// the compiler kept the chunk, and so operands' descriptors, out of the uniform registers (a chunk took 10 % longer). Value
// warpgroups see a plan through `matrices_full`, the scores role through `stage_empty`.
#pragma once

#include <gdn_cuda/kernels/chunked/block.cuh>

namespace gdn_cuda::gdn {

__device__ __forceinline__ const WorkTile& slot_at(const WorkTiles& work_tiles, int index) {
    return work_tiles.slots[static_cast<unsigned>(index) % WorkTiles::kSlots];
}
// Where a value role begins in the block's chunks. Shuffled, it is warp-uniform for the compiler; operands' descriptors would
// leave the uniform registers otherwise.
template <ChunkedConfig kConfig>
__device__ __forceinline__ int first_chunk(const WorkOf<kConfig>& work) {
    if constexpr (kConfig.persistent) return __shfl_sync(0xffffffffu, work.first, 0);
    return 0;
}
// Whether a chunk belongs to a later work tile.
__device__ __forceinline__ bool ends_before(const WorkTile& work_tile, int chunk) {
    return static_cast<unsigned>(chunk) >= static_cast<unsigned>(work_tile.tokens.chunks);  // kNone is the largest
}
// The roles' loops end by these votes, which make the chunk warp-uniform for the compiler.
__device__ __forceinline__ bool has_work_tiles(const WorkTiles& work_tiles) {
    return __any_sync(0xffffffffu, work_tiles.slots[0].tokens.chunks != WorkTile::kNone);
}
__device__ __forceinline__ bool is_followed(const WorkTiles::Chunk& chunk) {
    return !__any_sync(0xffffffffu, chunk.is_last);
}
// The tokens of a loaded chunk.
template <ChunkedConfig kConfig, bool kStrided>
__device__ __forceinline__ int tokens_of(const ChunkedPlan<kConfig>& shared, int chunk, int stage) {
    if constexpr (kConfig.persistent)
        return shared.work_tiles.chunks[stage].tokens;
    else
        return tokens_in<kConfig, kStrided>(shared.work.tokens, chunk);
}

// By a whole warp: plans the next work tile that has chunks, or the end.
template <ChunkedConfig kConfig>
__device__ __forceinline__ void plan_work_tile(ChunkedPlan<kConfig>& shared, const ChunkedArgs& args) {
    auto& work_tiles = shared.work_tiles;
    WorkTile& work_tile = work_tiles.slots[static_cast<unsigned>(work_tiles.planned) % WorkTiles::kSlots];
    const int before = work_tiles.planned_chunks;
    const GdnCall& call = args.call;
    // Reciprocals of these would be computed before the loop over chunks, and spilled.
    const unsigned row_tiles = (opaque(call.dv) + kConfig.rows_per_block() - 1) / kConfig.rows_per_block(),
                   heads = opaque(call.heads), heads_per_key = opaque(call.heads_per_key);
    unsigned index = work_tiles.next, sequence = 0, head = 0, row_tile = 0;
    Span span{};
    i64 slot = 0;
    __syncwarp();
#pragma unroll 1
    for (; index < args.work_tiles; index += gridDim.x) {
        const unsigned pair = index / row_tiles;
        row_tile = index - pair * row_tiles, sequence = pair / heads, head = pair - sequence * heads;
        int step;
        if (starting_slot(call, sequence, slot, step) != Place::run) continue;
        span = span_of(call.cu_seqlens, sequence, call.tokens);
        if (span.length > 0) break;
    }
    if (threadIdx.x % 32 == 0) {
        ++work_tiles.planned;
        work_tiles.next = static_cast<int>(index + gridDim.x);
        work_tile.sequence = sequence;
        work_tile.head = head;
        work_tile.key_head = head / heads_per_key;
        work_tile.first_row = work_tile.first_value = row_tile * kConfig.rows_per_block();
        work_tile.rows = call.dv;
        work_tile.states.initial_slot = slot * call.initial.slot;
        work_tile.states.last_slot = slot * call.last.slot;
        work_tile.states.begins = work_tile.states.ends = true;
        work_tile.tokens.first_output = 0;
        work_tile.tokens.before = -before * kChunk;
        work_tile.first = before;
        work_tile.tokens.length = span.length + before * kChunk;
        work_tile.tokens.start = span.start - static_cast<i64>(before) * kChunk;
        const auto first_of = [&](const Scalars& scalars) {
            return static_cast<const char*>(scalars.values.data) +
                   (sequence * scalars.batch + span.start * scalars.token + head * scalars.head) *
                       bytes_of(scalars.values.type);
        };
        work_tile.gates = first_of(call.gate);
        work_tile.betas = first_of(call.beta);
        const bool found = index < args.work_tiles;
        const int end = before + (span.length + kChunk - 1) / kChunk;
        work_tile.tokens.chunks = found ? end : WorkTile::kNone;
        work_tiles.planned_chunks = found ? end : WorkTiles::kNoMoreChunks;
    }
    __syncwarp();
}
// By a whole warp, before the first work tile and as each ends.
template <ChunkedConfig kConfig>
__device__ __forceinline__ void plan_work_tiles(ChunkedPlan<kConfig>& shared, const ChunkedArgs& args) {
    auto& work_tiles = shared.work_tiles;
    const int begun = work_tiles.begun, until = slot_at(work_tiles, begun).tokens.chunks + WorkTiles::kAhead;
    __syncwarp();
    if (threadIdx.x % 32 == 0) work_tiles.begun = begun + 1;
#pragma unroll 1
    while (work_tiles.planned_chunks < until) plan_work_tile(shared, args);
}

// By the whole block, for every gridDim.x-th work tile: outputs and states of empty, skipped and poisoned sequences.
template <ChunkedConfig kConfig>
__device__ __forceinline__ void finish_work_tiles_without_chunks(const ChunkedArgs& args) {
    const GdnCall& call = args.call;
    const unsigned row_tiles = (call.dv + kConfig.rows_per_block() - 1) / kConfig.rows_per_block();
#pragma unroll 1
    for (unsigned index = blockIdx.x; index < args.work_tiles; index += gridDim.x) {
        ChunkedBlock<kConfig>(args, static_cast<int>(index / row_tiles), static_cast<int>(index % row_tiles))
            .finish_without_chunks();
    }
}

}  // namespace gdn_cuda::gdn
