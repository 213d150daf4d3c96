// ssd/checkpoints: where the chunks of a call are that reports states at given tokens. A chunk ends at each of those, or after
// 64 tokens, and the next begins there, so that the scan stores the state between two chunks.
//
//     piece p of a sequence      from a token that is reported, or its first, to the next that is, or its last
//     chunks before it           sum of ceil(length / 64) over the pieces before
//
// The first block makes the table: a warp has a sequence, and its lanes pieces, then chunks of a piece. A further block looks
// at a row of checkpoints each, and fills it if no chunk reports it: with zeros, or with NaN for a token that does not exist.
//
// Bound (computed): latency, a few dependent loads for each sequence of a warp and each of its pieces, some microseconds.
#pragma once

#include <gdn_cuda/kernels/common/numeric.cuh>
#include <gdn_cuda/kernels/common/raw_element.cuh>
#include <gdn_cuda/kernels/common/varlen.cuh>
#include <gdn_cuda/kernels/ssd/checkpoints_plan.cuh>

namespace gdn_cuda::ssd {

// A sequence's tokens, and those between its first and its last that are reported.
struct SequenceCuts {
    const SsdCheckpointsArgs& args;
    int sequence;
    Span span;
    int first = 0, count = 0;  // of the boundaries

    __device__ __forceinline__ SequenceCuts(const SsdCheckpointsArgs& args, int sequence)
        : args(args), sequence(sequence), span(span_of(args.cu_seqlens, sequence, args.tokens)) {
        if (args.boundaries.data != nullptr) {
            first = boundaries_before(span.start + 1);
            count = max(boundaries_before(span.start + span.length) - first, 0);
        } else if (args.offsets.data != nullptr) {
            count = offset() > 0 && offset() < span.length;
        }
    }
    __device__ __forceinline__ i64 offset() const { return load_index(args.offsets, sequence); }
    // How many are below `token`.
    __device__ __forceinline__ int boundaries_before(i64 token) const {
        int low = 0, high = args.boundary_count;
        while (low < high) {
            const int middle = (low + high) / 2;
            if (load_index(args.boundaries, middle) < token)
                low = middle + 1;
            else
                high = middle;
        }
        return low;
    }
    __device__ __forceinline__ int pieces() const { return span.length == 0 ? 0 : count + 1; }
    // Where a piece begins. Clamped, as boundaries that decrease cannot be refused without waiting for the device.
    __device__ __forceinline__ int start_of(int piece) const {
        if (piece == 0) return 0;
        if (piece > count) return span.length;
        const i64 token =
            args.boundaries.data != nullptr ? load_index(args.boundaries, first + piece - 1) - span.start : offset();
        return static_cast<int>(min(max(token, i64{0}), static_cast<i64>(span.length)));
    }
    __device__ __forceinline__ int chunks_of(int piece) const {
        return piece < pieces() ? (max(start_of(piece + 1) - start_of(piece), 0) + kChunk - 1) / kChunk : 0;
    }
    // Rows of checkpoints with the state after `end` tokens, where a piece's last chunk ends.
    __device__ __forceinline__ void find_rows(SsdChunk& chunk, int piece, int end) const {
        if (args.every > 0) {
            chunk.row = args.first_row[sequence] + end / args.every - 1, chunk.rows = end % args.every == 0;
        } else if (args.offsets.data != nullptr) {
            chunk.row = sequence, chunk.rows = offset() == end;
        } else {
            int last = first + piece;
            while (last < args.boundary_count && load_index(args.boundaries, last) == span.start + end) ++last;
            chunk.row = max(first + piece, 1) - 1, chunk.rows = last - 1 - chunk.row;  // the first boundary has no row
        }
        chunk.rows = max(min(chunk.rows, args.checkpoint_rows - chunk.row), 0);
    }
};

__device__ __forceinline__ i64 warp_sum(i64 x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

// Counts, by a warp; the sums over sequences follow.
__device__ __forceinline__ void count_sequence(const SsdCheckpointsArgs& args, int sequence, int lane) {
    const SequenceCuts cuts(args, sequence);
    i64 chunks = 0;
#pragma unroll 1
    for (int piece = lane; piece < cuts.pieces(); piece += 32) chunks += cuts.chunks_of(piece);
    chunks = warp_sum(chunks);
    if (lane > 0) return;
    args.first[sequence + 1] = static_cast<int>(min(chunks, static_cast<i64>(args.slots)));
    args.first_row[sequence + 1] = args.every > 0 ? cuts.span.length / args.every : 1;
    args.first_before[sequence + 1] = args.every > 0 ? (cuts.span.length + args.every - 1) / args.every : 0;
}
// counts[1 ..] become sums, by a warp. Bounded, as sequences that overlap may have more tokens than there are.
__device__ __forceinline__ void sum_counts(int* counts, int sequences, int lane) {
    constexpr int kMost = 1 << 30;
    int before = 0;
    if (lane == 0) counts[0] = 0;
#pragma unroll 1
    for (int first = 0; first < sequences; first += 32) {
        int sum = first + lane < sequences ? counts[first + lane + 1] : 0;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const int other = __shfl_up_sync(0xffffffffu, sum, step);
            sum += lane >= step ? other : 0;
        }
        if (first + lane < sequences) counts[first + lane + 1] = min(before + sum, kMost);
        before = min(before + __shfl_sync(0xffffffffu, sum, 31), kMost);
    }
}
__device__ __forceinline__ void write_sequence(const SsdCheckpointsArgs& args, int sequence, int lane) {
    const SequenceCuts cuts(args, sequence);
    int slot = args.first[sequence];
#pragma unroll 1
    for (int piece = 0; piece < cuts.pieces(); ++piece) {
        const int start = cuts.start_of(piece), end = max(cuts.start_of(piece + 1), start), chunks = cuts.chunks_of(piece);
#pragma unroll 1
        for (int i = lane; i < chunks && slot + i < args.slots; i += 32) {
            const int first = start + i * kChunk, count = min(kChunk, end - first);
            SsdChunk chunk{.first = static_cast<int>(cuts.span.start) + first, .count = count, .sequence = sequence};
            if (args.every > 0 || i + 1 == chunks) cuts.find_rows(chunk, piece, first + count);
            if (args.every > 0 && first % args.every == 0) {
                const int row = args.first_before[sequence] + first / args.every;
                chunk.before = row < args.before_rows ? row : -1;
            }
            args.chunks[slot + i] = chunk;
        }
        slot += chunks;
    }
}
// Boundaries belong to the sequence that they end.
__device__ __forceinline__ void set_first_boundary(const SsdCheckpointsArgs& args, int sequence) {
    const bool is_last = sequence == args.sequences;
    const SequenceCuts cuts(args, is_last ? sequence - 1 : sequence);
    const int first = is_last ? cuts.boundaries_before(cuts.span.start + cuts.span.length + 1) : cuts.first;
    args.first_row[sequence] = max(first - 1, 0);
}
template <int kWarps>
__device__ __forceinline__ void make_table(const SsdCheckpointsArgs& args) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll 1
    for (int sequence = warp; sequence < args.sequences; sequence += kWarps) count_sequence(args, sequence, lane);
    __syncthreads();
    if (warp == 0) sum_counts(args.first, args.sequences, lane);
    if (warp == 1) sum_counts(args.first_row, args.sequences, lane);
    if (warp == 2) sum_counts(args.first_before, args.sequences, lane);
    __syncthreads();
    if (args.boundaries.data != nullptr) {
#pragma unroll 1
        for (int sequence = threadIdx.x; sequence <= args.sequences; sequence += 32 * kWarps)
            set_first_boundary(args, sequence);
    }
#pragma unroll 1
    for (int sequence = warp; sequence < args.sequences; sequence += kWarps) write_sequence(args, sequence, lane);
    __syncthreads();
    const int used = args.first[args.sequences];
#pragma unroll 1
    for (int slot = used + threadIdx.x; slot < args.slots; slot += 32 * kWarps) args.chunks[slot] = {};
        // Boundaries that decrease have more chunks than there is room for, and a caller may have given fewer rows.
#pragma unroll 1
    for (int sequence = threadIdx.x; sequence <= args.sequences; sequence += 32 * kWarps) {
        args.first[sequence] = min(args.first[sequence], args.slots);
        args.first_row[sequence] = min(args.first_row[sequence], args.checkpoint_rows);
        args.first_before[sequence] = min(args.first_before[sequence], args.before_rows);
    }
}

// Whether no chunk reports a row, and what is in it then.
__device__ __forceinline__ bool has_no_chunk(const SsdCheckpointsArgs& args, int row, float& value) {
    value = 0.f;
    if (args.offsets.data != nullptr) {
        const SequenceCuts cuts(args, row);
        if (cuts.offset() > cuts.span.length) value = quiet_nan();
        return cuts.offset() <= 0 || cuts.offset() > cuts.span.length;
    }
    const Span last = span_of(args.cu_seqlens, args.sequences - 1, args.tokens);
    const i64 boundary = load_index(args.boundaries, row + 1);
    return boundary <= span_of(args.cu_seqlens, 0, args.tokens).start || boundary > last.start + last.length;
}
// How many rows sequences fill if states are reported every so many tokens. By a warp.
__device__ __forceinline__ i64 filled_rows(const SsdCheckpointsArgs& args, int rest, int lane) {
    i64 rows = 0;
#pragma unroll 1
    for (int sequence = lane; sequence < args.sequences; sequence += 32)
        rows += (span_of(args.cu_seqlens, sequence, args.tokens).length + rest) / args.every;
    return warp_sum(rows);
}
template <int kThreads>
__device__ __forceinline__ void fill_row(const SsdStates& states, int row, i64 head_elements, i64 elements, float value) {
#pragma unroll 1
    for (i64 i = threadIdx.x; i < elements; i += kThreads) {
        const i64 at = row * states.slot + i / head_elements * states.head + i % head_elements;
        store_float(states.data, states.type, at, value);
    }
}

template <SsdCheckpointsConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 1) checkpoints(const __grid_constant__ SsdCheckpointsArgs args) {
    if (blockIdx.x == 0) return make_table<kConfig.warps>(args);
    const int block = static_cast<int>(blockIdx.x) - 1;
    const bool is_before = block >= args.checkpoint_rows;
    const int row = is_before ? block - args.checkpoint_rows : block;
    float value = 0.f;
    const bool fills = args.every > 0 ? row >= filled_rows(args, is_before ? args.every - 1 : 0, threadIdx.x % 32)
                                      : has_no_chunk(args, row, value);
    if (fills)
        fill_row<kConfig.threads()>(is_before ? args.before : args.checkpoints, row, args.head_elements,
                                    args.heads * args.head_elements, value);
}

}  // namespace gdn_cuda::ssd
