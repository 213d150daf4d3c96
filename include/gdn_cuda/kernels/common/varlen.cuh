// Lookup of sequences and chunks in a packed (varlen) or padded batch.
#pragma once

#include <gdn_cuda/kernels/common/numeric.cuh>

namespace gdn_cuda {

struct Span {
    i64 start;   // first token, along the token stride
    int length;  // tokens
};

// cu_seqlens.data == nullptr: padded, every sequence has `tokens` tokens and its own batch stride. Packed: spans are clamped to
// the `tokens` of the batch, as the host cannot check cu_seqlens without a device synchronisation. Spans may overlap, so the
// sum of lengths may exceed `tokens`: counts summed over sequences need a bound of their own.
__device__ __forceinline__ Span span_of(const Tagged& cu_seqlens, int sequence, int tokens) {
    if (cu_seqlens.data == nullptr) return {0, tokens};
    const i64 last = tokens;
    const i64 start = min(max(load_index(cu_seqlens, sequence), i64{0}), last);
    const i64 end = min(max(load_index(cu_seqlens, sequence + 1), start), last);  // clamp before subtracting
    return {start, static_cast<int>(end - start)};
}

struct ChunkPlace {
    int sequence;  // -1: past the last chunk
    int first;     // first token of the chunk, within its sequence
    i64 start;     // first token of the sequence
    int length;    // tokens of the sequence
};

// Chunks are numbered over all sequences in order; a sequence has ceil(length / chunk_size). Linear search: batches have a few
// hundred sequences at most.
__device__ __forceinline__ ChunkPlace place_of_chunk(const Tagged& cu_seqlens, int sequences, int tokens, int chunk_size,
                                                     int chunk) {
    if (cu_seqlens.data == nullptr) {
        const int per_sequence = static_cast<int>(ceil_div(tokens, chunk_size));
        const int sequence = chunk / per_sequence;
        return {sequence < sequences ? sequence : -1, (chunk - sequence * per_sequence) * chunk_size, 0, tokens};
    }
    for (int sequence = 0; sequence < sequences; ++sequence) {
        const Span span = span_of(cu_seqlens, sequence, tokens);
        const int count = static_cast<int>(ceil_div(span.length, chunk_size));
        if (chunk < count) return {sequence, chunk * chunk_size, span.start, span.length};
        chunk -= count;
    }
    return {-1, 0, 0, 0};
}

}  // namespace gdn_cuda
