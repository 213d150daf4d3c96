// What a block has to do: some row tiles of heads of a group, of one sequence.
#pragma once

#include <gdn_cuda/kernels/common/raw_element.cuh>
#include <gdn_cuda/kernels/common/state_slots.cuh>
#include <gdn_cuda/kernels/common/storage.cuh>
#include <gdn_cuda/kernels/common/varlen.cuh>
#include <gdn_cuda/kernels/ssd/scan_plan.cuh>

namespace gdn_cuda::ssd {

__device__ __forceinline__ void set_slots(SsdWork& work, const SsdArgs& args) {
    i64 slot;
    int step;
    const int sequence = work.sequence;
    const SsdPass& pass = args.passes[work.pass];
    work.place = starting_slot(args, sequence, slot, step);
    const bool runs = work.place == Place::run;
    const bool begins = pass.initial.data != nullptr && (args.has_initial == nullptr || args.has_initial[sequence]);
    work.initial_slot = runs && begins ? slot : -1;
    work.last_slot = runs && pass.last.data != nullptr ? slot : -1;
    if (work.last_slot >= 0 && args.last_slots.data != nullptr) {
        const i64 last = load_index(args.last_slots, sequence);
        work.last_slot = last < args.last_slot_count ? last : -1;
    }
}

// How a sequence's chunks are split. Into segments of equal length; a segment that others follow sums its own chunks first.
// Where there are two, with outputs, the second's blocks sum the first, as they would have to wait for it, and the first is
// longer: a step without outputs takes half of one with them, so with lengths of 7 to 4 both end together
// (docs/kernels/ssd_prefill.md).
struct SegmentsOf {
    bool is_uneven;
    int count, chunks, in_segment;

    __device__ __forceinline__ SegmentsOf(int most, int chunks, bool has_outputs)
        : is_uneven(has_outputs && most == 2), chunks(chunks) {
        const int quarters = is_uneven ? 7 + 4 : 4 * most;
        in_segment = max((4 * chunks + quarters - 1) / quarters, kShortestSegment);
        count = max(min(most, (chunks + (is_uneven ? 0 : in_segment - 1)) / in_segment), 1);
    }
    __device__ __forceinline__ int first_chunk(int segment) const {
        return segment <= 0 ? 0 : segment >= count ? chunks : chunks - (count - segment) * in_segment;
    }
};
__device__ __forceinline__ SsdWork work_of_block(const SsdArgs& args, int row_tiles) {
    const int group_tiles = args.heads / args.groups * args.tiles_of_head, blocks = (group_tiles + row_tiles - 1) / row_tiles;
    const int block = static_cast<int>(blockIdx.x), group = block / blocks, first = block % blocks * row_tiles;
    const int pass = static_cast<int>(blockIdx.y) / args.sequences, sequence = static_cast<int>(blockIdx.y) % args.sequences;
    const Span span = span_of(args.cu_seqlens, sequence, args.tokens);
    const int* const first_slot = args.table.chunks == nullptr ? nullptr : args.table.first + sequence;
    const int chunks = first_slot != nullptr ? first_slot[1] - first_slot[0] : (span.length + kChunk - 1) / kChunk,
              segment = static_cast<int>(blockIdx.z);
    const bool summary = args.states_only && args.passes[pass].chunk_states == nullptr;
    const SegmentsOf segments(args.segments.count, chunks, !summary);
    const int first_chunk = segments.first_chunk(segment), own = max(segments.first_chunk(segment + 1) - first_chunk, 0),
              summed = segments.is_uneven ? segment - 1 : segment, first_summed = segments.first_chunk(summed),
              hands_on = summary || segment + 1 < segments.count ? own : 0,
              first_own = segments.is_uneven ? max(first_chunk - first_summed, 0) : hands_on;
    SsdWork work{.pass = pass,
                 .sequence = sequence,
                 .batch = args.cu_seqlens.data != nullptr ? 0 : sequence,
                 .group = group,
                 .first_tile = group * group_tiles + first,
                 .tiles = min(row_tiles, group_tiles - first),
                 .start = static_cast<int>(span.start),
                 .length = span.length,
                 .segment = segment,
                 .segments = segments.count,
                 .first_chunk = first_chunk,
                 .summed = summed,
                 .first_summed = first_summed,
                 .steps = summary ? own : first_own + own,
                 .first_own = first_own,
                 .has_outputs = !args.states_only,
                 .last_chunk = chunks - 1,
                 .chunks_before = first_slot != nullptr             ? *first_slot
                                  : args.cu_seqlens.data == nullptr ? i64{sequence} * chunks
                                                                    : span.start / kChunk + sequence};
#pragma unroll
    for (int i = 0; i < kMostRowTiles; ++i) {  // all, so that no index is variable and the array needs no local memory
        const int tile = work.first_tile + i, in_head = tile % args.tiles_of_head;
        work.row_tiles[i] = {
            .head = tile / args.tiles_of_head, .first_row = in_head * kTileRows, .scores = max(i - in_head, 0)};
    }
    set_slots(work, args);
    return work;
}
// Of a call with a table of chunks.
__device__ __forceinline__ const SsdChunk& chunk_of_table(const SsdArgs& args, const SsdWork& work, int chunk) {
    return args.table.chunks[work.chunks_before + chunk];
}
// A chunk's tokens, from `first` of their row of the batch on.
struct ChunkTokens {
    int first, count;
};
__device__ __forceinline__ ChunkTokens tokens_of(const SsdArgs& args, const SsdWork& work, int chunk) {
    if (args.table.chunks != nullptr) {
        const SsdChunk& told = chunk_of_table(args, work, chunk);
        return {told.first, told.count};
    }
    return {work.start + chunk * kChunk, min(kChunk, work.length - chunk * kChunk)};
}
// Whether other tokens of the row follow a chunk's within 64, which are another sequence's or chunk's.
__device__ __forceinline__ bool has_tail(const SsdArgs& args, const SsdWork& work, int chunk) {
    if (args.cu_seqlens.data == nullptr && args.table.chunks == nullptr) return false;
    return tokens_of(args, work, chunk).count < kChunk;
}

// A block's channels in rows of states.
template <int kThreads>
__device__ __forceinline__ void fill_states(const SsdStates& states, int first, int end, const SsdArgs& args,
                                            const SsdWork& work, float value) {
    if (states.data == nullptr) return;
    for (int tile = 0; tile < work.tiles; ++tile) {
        const auto [head, first_channel, _] = work.row_tiles[tile];
        const i64 elements = i64{min(kTileRows, args.channels - first_channel)} * args.states,
                  from = head * states.head + i64{first_channel} * args.states;
#pragma unroll 1
        for (int row = first; row < end; ++row)
#pragma unroll 1
            for (i64 i = threadIdx.x; i < elements; i += kThreads)
                store_float(states.data, states.type, row * states.slot + from + i, value);
    }
}
// Fills the outputs and checkpoints of a sequence that is not computed: 0 if it has no slot, NaN if its slot is past the pool.
// Its first segment's blocks do.
template <DType kIo, int kThreads>
__device__ __forceinline__ void fill_outputs(const SsdArgs& args, const SsdWork& work) {
    using Io = Storage<kIo>;
    if (work.segment > 0) return;
    const Io value = from_float<Io>(work.place == Place::skip ? 0.f : quiet_nan());
    for (int tile = 0; tile < work.tiles; ++tile) {
        const auto [head, first_row, _] = work.row_tiles[tile];
        const int rows = min(kTileRows, args.channels - first_row);
        Io* const to = static_cast<Io*>(args.out_data) + work.batch * args.out_batch + work.start * args.out_token +
                       head * args.out_head + first_row;
#pragma unroll 1
        for (i64 i = threadIdx.x; i < static_cast<i64>(work.length) * rows; i += kThreads)
            to[i / rows * args.out_token + i % rows] = value;
    }
    if (args.table.chunks == nullptr) return;
    const auto fill = [&](const SsdStates& states, const int* first) {
        fill_states<kThreads>(states, first[work.sequence], first[work.sequence + 1], args, work, to_float(value));
    };
    fill(args.checkpoints, args.table.first_row);
    fill(args.states_before, args.table.first_before);
}

}  // namespace gdn_cuda::ssd
