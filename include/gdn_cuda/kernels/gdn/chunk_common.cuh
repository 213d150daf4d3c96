// What the three pieces of the chunked form share: arguments, and loading a chunk into shared memory.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda::gdn {

constexpr int kChunk = 64;

// Padded (batch, token, head, d) or packed with cu_seqlens; gate is the cumulative sum inside each chunk, or absent.
struct ChunkArgs {
    Rows query, key, value, w, output;  // each piece uses its own
    Scalars beta, gate;
    int sequences, tokens, heads, heads_per_key, dk, dv;
    float scale;
    Tagged cu_seqlens;

    void* states;      // (batch, chunks, Hv, dv, dk), or (chunks, Hv, dv, dk) packed: before each chunk; contiguous
    i64 state_chunks;  // how many there are; chunks past them are left alone
    void* final_state;
    DType states_type, final_type;
    bool has_initial, has_final;
};

}  // namespace gdn_cuda::gdn

#ifdef __CUDACC__

#include <gdn_cuda/kernels/common/varlen.cuh>

namespace gdn_cuda::gdn {

// Rows [first, first + count) of one head into a shared tile; the rest of the tile becomes zero.
template <int kPitch>
__device__ __forceinline__ void load_chunk(float (*tile)[kPitch], const Rows& rows, const ChunkPlace& place, int head,
                                           int count, int first_column, int columns) {
    const auto* from = static_cast<const __nv_bfloat16*>(rows.data) + place.sequence * rows.batch +
                       (place.start + place.first) * rows.token + head * rows.head + first_column;
    for (int i = threadIdx.x; i < kChunk * columns; i += blockDim.x) {
        const int token = i / columns, column = i % columns;
        tile[token][column] = token < count ? to_float(from[token * rows.token + column]) : 0.f;
    }
}

// Tokens past `count` repeat the last gate, so that differences with them stay finite.
__device__ __forceinline__ void load_gates(float* gates, const Scalars& from, const ChunkPlace& place, int head, int count) {
    for (int i = threadIdx.x; i < kChunk; i += blockDim.x) {
        const i64 token = place.start + place.first + min(i, count - 1);
        gates[i] = from.values.data == nullptr
                       ? 0.f
                       : load_number(from.values, place.sequence * from.batch + token * from.token + head * from.head);
    }
}

// Index of a sequence's first chunk among the chunks of all.
__device__ __forceinline__ i64 first_chunk_of(const ChunkArgs& args, int sequence) {
    if (args.cu_seqlens.data == nullptr) return sequence * ceil_div(args.tokens, kChunk);
    i64 chunks = 0;
    for (int n = 0; n < sequence; ++n) chunks += ceil_div(span_of(args.cu_seqlens, n, args.tokens).length, kChunk);
    return chunks;
}

__device__ __forceinline__ float dot(const float* a, const float* b, int length) {
    float sum = 0.f;
    for (int d = 0; d < length; ++d) sum = fmaf(a[d], b[d], sum);
    return sum;
}

}  // namespace gdn_cuda::gdn

#endif
