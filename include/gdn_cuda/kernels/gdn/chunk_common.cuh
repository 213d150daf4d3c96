// What gdn/compute_u_w, gdn/seq_state_update and gdn/compute_o share: arguments, and where a chunk's tokens and scalars are.
#pragma once

#include <gdn_cuda/kernels/chunked/chunk.cuh>

namespace gdn_cuda::gdn {

// Tensors are padded (batch, token, head, d), or packed with cu_seqlens. `gate` is cumulated within each chunk, or absent.
struct ChunkArgs {
    Rows query, key, value, w, output;  // a kernel reads those of its operator
    Scalars beta, gate;
    int sequences, tokens, heads, heads_per_key, dk, dv;
    float scale;
    Tagged cu_seqlens;

    void* states;      // state before each chunk: (batch, chunks, Hv, dv, dk), or (chunks, Hv, dv, dk) packed; contiguous
    i64 state_chunks;  // the rows that `states` has; states of later chunks are not stored
    void* final_state;
    DType states_type, final_type;
    bool has_initial, has_final;
};

}  // namespace gdn_cuda::gdn

#ifdef __CUDACC__

#include <gdn_cuda/kernels/common/varlen.cuh>

namespace gdn_cuda::gdn {

__device__ __forceinline__ int chunks_of(const Span& span) {
    return static_cast<int>(ceil_div(span.length, kChunk));
}

// place_of_chunk by a whole warp, 32 sequences at a time: every block starts with this search, also in batches of hundreds of
// sequences.
__device__ __forceinline__ ChunkPlace find_chunk(const ChunkArgs& args, int chunk) {
    if (args.cu_seqlens.data == nullptr) return place_of_chunk(args.cu_seqlens, args.sequences, args.tokens, kChunk, chunk);
    constexpr unsigned kAll = 0xffffffffu;
    const int lane = threadIdx.x % 32;
    for (int base = 0; base < args.sequences; base += 32) {
        const int sequence = base + lane;
        const Span span = sequence < args.sequences ? span_of(args.cu_seqlens, sequence, args.tokens) : Span{0, 0};
        const int count = chunks_of(span);
        int until = count;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const int before = __shfl_up_sync(kAll, until, step);
            if (lane >= step) until += before;
        }
        if (const unsigned later = __ballot_sync(kAll, chunk < until)) {
            const int found = __ffs(static_cast<int>(later)) - 1;
            return {base + found, (chunk - __shfl_sync(kAll, until - count, found)) * kChunk,
                    __shfl_sync(kAll, span.start, found), __shfl_sync(kAll, span.length, found)};
        }
        chunk -= __shfl_sync(kAll, until, 31);
    }
    return {-1, 0, 0, 0};
}

// The index of a sequence's first chunk among the chunks of all sequences. A whole warp calls.
__device__ __forceinline__ i64 first_chunk_of(const ChunkArgs& args, int sequence) {
    if (args.cu_seqlens.data == nullptr) return sequence * ceil_div(args.tokens, kChunk);
    i64 chunks = 0;  // invalid offsets may overlap: the sum of their spans can exceed an int
    for (int n = threadIdx.x % 32; n < sequence; n += 32) chunks += chunks_of(span_of(args.cu_seqlens, n, args.tokens));
#pragma unroll
    for (int step = 16; step > 0; step /= 2) chunks += __shfl_xor_sync(0xffffffffu, chunks, step);
    return chunks;
}

// The row of a chunk's first token, for one head.
__device__ __forceinline__ __nv_bfloat16* rows_at(const Rows& rows, const ChunkPlace& place, int head) {
    return static_cast<__nv_bfloat16*>(rows.data) + place.sequence * rows.batch + (place.start + place.first) * rows.token +
           head * rows.head;
}

// The offset of a token's scalar.
__device__ __forceinline__ i64 scalar_at(const Scalars& scalars, const ChunkPlace& place, int head, int token) {
    return place.sequence * scalars.batch + (place.start + place.first + token) * scalars.token + head * scalars.head;
}

// A caller's cumulative gate may be -inf, and -inf minus -inf is NaN. With -FLT_MAX in its place, the difference of two such
// gates is 0, and exp of the difference to any other gate is 0.
__device__ __forceinline__ float finite_sum(float gate) {
    return at_least(gate, -3.402823466e38f);
}

// Tokens past `count` have the last token's gate, so that differences stay finite.
__device__ __forceinline__ const float* gate_at(const Scalars& gates, const ChunkPlace& place, int head, int count, int token) {
    return static_cast<const float*>(gates.values.data) + scalar_at(gates, place, head, min(token, count - 1));
}
__device__ __forceinline__ float gate_of(const Scalars& gates, const ChunkPlace& place, int head, int count, int token) {
    return gates.values.data == nullptr ? 0.f : finite_sum(*gate_at(gates, place, head, count, token));
}

}  // namespace gdn_cuda::gdn

#endif
