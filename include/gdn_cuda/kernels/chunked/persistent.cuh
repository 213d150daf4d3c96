// Persistent blocks of gdn/prefill. An item of their work is a whole sequence, a value head and the rows of a block.
// The pipeline of chunks goes on from item to item, so that helper roles load and prepare the next item's first chunks while
// value warpgroups finish the last ones and exchange the state.
//
// Items are planned ahead, in eight slots. The inverse plans: at an item's end, and by a whole warp, as a branch of one lane
// would take the chunk, and with it operands' descriptors, out of the uniform registers (a chunk took 10 % longer). What it
// plans reaches the value warpgroups by `ready`, and scores by their `done`.
#pragma once

#include <gdn_cuda/kernels/chunked/block.cuh>

namespace gdn_cuda::gdn {

__device__ __forceinline__ const PrefillItem& slot_of(const PrefillItems& items, int number) {
    return items.slots[static_cast<unsigned>(number) % PrefillItems::kSlots];
}
// Where a value role begins in the block's chunks. Shuffled, it is warp-uniform for the compiler; operands' descriptors would
// leave the uniform registers otherwise.
template <PrefillConfig kConfig>
__device__ __forceinline__ int first_chunk(const WorkOf<kConfig>& work) {
    if constexpr (kConfig.persistent) return __shfl_sync(0xffffffffu, work.first, 0);
    return 0;
}
// Whether a chunk belongs to a later item.
__device__ __forceinline__ bool ends_before(const PrefillItem& item, int chunk) {
    return static_cast<unsigned>(chunk) >= static_cast<unsigned>(item.chunks);  // kNone is the largest
}
// The roles' loops end by these votes, which make the chunk warp-uniform for the compiler.
__device__ __forceinline__ bool has_items(const PrefillItems& items) {
    return __any_sync(0xffffffffu, items.slots[0].chunks != PrefillItem::kNone);
}
__device__ __forceinline__ bool is_followed(const PrefillItems::Chunk& chunk) {
    return !__any_sync(0xffffffffu, chunk.is_last);
}
// Of a chunk that has been loaded.
template <PrefillConfig kConfig, bool kSpaced>
__device__ __forceinline__ int tokens_of(const PrefillSharedPlan<kConfig>& shared, int chunk, int stage) {
    if constexpr (kConfig.persistent)
        return shared.items.chunks[stage].tokens;
    else
        return tokens_in<kConfig, kSpaced>(shared.work, chunk);
}

// By a whole warp: plans the next item that has chunks, or the end.
template <PrefillConfig kConfig>
__device__ __forceinline__ void plan_item(PrefillSharedPlan<kConfig>& shared, const PrefillArgs& args) {
    auto& items = shared.items;
    PrefillItem& item = items.slots[static_cast<unsigned>(items.planned) % PrefillItems::kSlots];
    const int before = items.planned_chunks;
    const GdnCall& all = args.recurrence;
    // Reciprocals of these would be computed before the loop over chunks, and spilled.
    const unsigned tiles = (opaque(all.dv) + kConfig.rows_per_block() - 1) / kConfig.rows_per_block(),
                   heads = opaque(all.heads), heads_per_key = opaque(all.heads_per_key);
    unsigned number = items.next, sequence = 0, head = 0, tile = 0;
    Span span{};
    i64 slot = 0;
    __syncwarp();
#pragma unroll 1
    for (; number < args.items; number += gridDim.x) {
        const unsigned pair = number / tiles;
        tile = number - pair * tiles, sequence = pair / heads, head = pair - sequence * heads;
        int step;
        if (starting_slot(all, sequence, slot, step) != Place::run) continue;
        span = span_of(all.cu_seqlens, sequence, all.tokens);
        if (span.length > 0) break;
    }
    if (threadIdx.x % 32 == 0) {
        ++items.planned;
        items.next = static_cast<int>(number + gridDim.x);
        item.sequence = sequence;
        item.head = head;
        item.key_head = head / heads_per_key;
        item.first_row = item.first_value = tile * kConfig.rows_per_block();
        item.rows = all.dv;
        item.initial_slot = slot * all.initial.slot;
        item.last_slot = slot * all.last.slot;
        item.begins = item.ends = true;
        item.first_output = 0;
        item.tokens_before = -before * kChunk;
        item.first = before;
        item.length = span.length + before * kChunk;
        item.start = span.start - static_cast<i64>(before) * kChunk;
        const auto scalars = [&](const Scalars& of) {
            return static_cast<const char*>(of.values.data) +
                   (sequence * of.batch + span.start * of.token + head * of.head) * bytes_of(of.values.type);
        };
        item.gates = scalars(all.gate);
        item.betas = scalars(all.beta);
        const bool found = number < args.items;
        const int end = before + (span.length + kChunk - 1) / kChunk;
        item.chunks = found ? end : PrefillItem::kNone;
        items.planned_chunks = found ? end : PrefillItems::kNoMoreChunks;
    }
    __syncwarp();
}
// By a whole warp, before the first item and as each ends.
template <PrefillConfig kConfig>
__device__ __forceinline__ void plan_items(PrefillSharedPlan<kConfig>& shared, const PrefillArgs& args) {
    auto& items = shared.items;
    const int begun = items.begun, until = slot_of(items, begun).chunks + PrefillItems::kAhead;
    __syncwarp();
    if (threadIdx.x % 32 == 0) items.begun = begun + 1;
#pragma unroll 1
    while (items.planned_chunks < until) plan_item(shared, args);
}

// By the whole block, for every gridDim.x-th item: outputs and states of empty, skipped and poisoned sequences.
template <PrefillConfig kConfig>
__device__ __forceinline__ void finish_items_without_chunks(const PrefillArgs& args) {
    const GdnCall& all = args.recurrence;
    const unsigned tiles = (all.dv + kConfig.rows_per_block() - 1) / kConfig.rows_per_block();
#pragma unroll 1
    for (unsigned number = blockIdx.x; number < args.items; number += gridDim.x) {
        PrefillBlock<kConfig>(args, static_cast<int>(number / tiles), static_cast<int>(number % tiles)).finish_without_chunks();
    }
}

}  // namespace gdn_cuda::gdn
