// Which work a block of gdn/prefill takes: its place in the grid, where it begins, and whether anybody needs it.
#pragma once

#include <gdn_cuda/kernels/gdn/prefill_segments.cuh>

namespace gdn_cuda::gdn {

template <PrefillConfig kConfig>
struct PrefillBlock {
    static constexpr int kRows = kConfig.rows_per_block();

    const PrefillArgs& args;
    const RecurrentArgs& all = args.recurrence;
    int sequence, segment, head, first_row;
    bool transfers;
    Span span;
    Place place;
    i64 slot, summary;
    int chunks, share, segment_begins, end;
    SegmentStart start{0, false};

    __device__ __forceinline__ explicit PrefillBlock(const PrefillArgs& args) : args(args) {
        const int parts = args.summarizes ? args.summaries.count : args.segments;
        sequence = static_cast<int>(blockIdx.z) / parts;
        segment = static_cast<int>(blockIdx.z) % parts;
        head = static_cast<int>(blockIdx.y);
        first_row = static_cast<int>(blockIdx.x) * kRows;
        const int value_rows = (all.dv + kRows - 1) / kRows * kRows;
        transfers = first_row >= value_rows;
        if (transfers) first_row -= value_rows;
        span = span_of(all.cu_seqlens, sequence, all.tokens);
        int first_step;
        place = starting_slot(all, sequence, slot, first_step);
        summary = (static_cast<i64>(sequence) * all.heads + head) * args.summaries.count + segment;
        chunks = (span.length + kChunk - 1) / kChunk;
        share = max((chunks + args.segments - 1) / args.segments, kShortestSegment);
        segment_begins = min(segment * share, chunks);
        end = min(segment_begins + share, chunks);
    }

    // Whether there is something to do; called by the whole block. `growths` has room for its warps.
    __device__ __forceinline__ bool find_start(float* growths) {
        if (!args.summarizes) {
            fill_what_nobody_computes();
            if (place == Place::run && segment == 0 && chunks == 0) hand_state_on();
            if (place != Place::run || segment_begins == end) return false;
        }
        // A summary is used if the next segment resumes.
        bool used = !args.summarizes || (place == Place::run && end < chunks);
#pragma unroll 1
        for (int next = args.summarizes ? 1 : 0; used && next >= 0; --next) {
            start = start_of_segment<kConfig>(args, span, sequence, head, segment + next, share, growths);
            if (next == 1) used = start.resumes;
        }
        if (!args.summarizes) return true;
        if (blockIdx.x == 0 && threadIdx.x == 0)
            args.summaries.links[summary] = !used ? kUnused : start.resumes ? kContinues : kStarts;
        return used && (!transfers || start.resumes);
    }
    // Outputs of sequences that do not run, and of tokens that belong to none.
    __device__ __forceinline__ void fill_what_nobody_computes() {
        if (segment > 0) return;
        if (all.cu_seqlens.data != nullptr && sequence == all.sequences - 1)
            fill_outputs<kConfig>(all, sequence, span.start + span.length, all.tokens, head, 0.f);
        if (place != Place::run)
            fill_outputs<kConfig>(all, sequence, span.start, span.start + span.length, head,
                                  place == Place::skip ? 0.f : quiet_nan());
    }

    // Of a sequence without tokens, these rows of the state, zero where there was none.
    __device__ __forceinline__ void hand_state_on() {
        char* to = static_cast<char*>(all.last.data);
        if (to == nullptr || to == all.initial.data) return;
        const int bytes = bytes_of(args.state), rows = min(kRows, all.dv - first_row);
        const i64 before = (static_cast<i64>(head) * all.dv + first_row) * all.dk;
        const auto* from = static_cast<const char*>(all.initial.data);
        if (from != nullptr) from += (slot * all.initial.slot + before) * bytes;
        to += (slot * all.last.slot + before) * bytes;
        for (int at = 16 * static_cast<int>(threadIdx.x); at < rows * all.dk * bytes; at += 16 * kConfig.threads())
            *reinterpret_cast<uint4*>(to + at) = from == nullptr ? uint4{} : *reinterpret_cast<const uint4*>(from + at);
    }

    __device__ __forceinline__ PrefillWork work() const {
        const i64 state = static_cast<i64>(all.dv) * all.dk;
        const int begin = start.chunk;
        float* to = nullptr;
        if (args.summarizes)
            to = transfers ? args.summaries.transfers + summary * all.dk * all.dk : args.summaries.states + summary * state;
        return {.start = span.start + begin * kChunk,
                .initial_slot = slot * all.initial.slot,
                .last_slot = slot * all.last.slot,
                .length = min(span.length, end * kChunk) - begin * kChunk,
                .chunks = end - begin,
                .silent = (args.summarizes ? end : segment_begins) - begin,
                .tokens_before = begin * kChunk,
                .begins = begin == 0,
                .ends = end == chunks,
                .transfers = transfers,
                .from = start.resumes && !args.summarizes ? args.summaries.states + (summary - 1) * state : nullptr,
                .summary = to,
                .segments = segment + 1,
                .sequence = sequence,
                .head = head,
                .key_head = static_cast<int>(static_cast<unsigned>(head) / static_cast<unsigned>(all.heads_per_key)),
                .first_row = first_row,
                .rows = transfers ? all.dk : all.dv,
                .checkpoints_before = args.summarizes ? 0 : packed_steps_before(all, sequence)};
    }
};

}  // namespace gdn_cuda::gdn
