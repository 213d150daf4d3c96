// What the passes of the backward hand over, in global memory, for each head and chunk; for host and device.
#pragma once

#include <gdn_cuda/kernels/gdn/chunk_common.cuh>

namespace gdn_cuda::gdn {

// A chunk's scalars. Tokens past the end have the last gate, a beta of least_beta, and norms of their zeros.
struct alignas(16) ChunkScalars {
    float query_norm[kChunk], key_norm[kChunk];  // inverse norms, or 1
    float gate[kChunk];                          // G, cumulative (log2)
    float beta[kChunk];                          // never 0
    unsigned cancels;                            // whether entries of T cancel: then R is used in two parts
    unsigned unused[3];
};

struct BackwardHandover {
    ChunkScalars* scalars;  // (head, chunk)
    void* states;           // S before the chunk, (head, chunk, dv, dk), rounded to 16 bits
    void* state_gradients;  // E, the gradient of the state after it
    // R = V' / beta, (head, chunk, part, token, dv), with zeros past the end: rounded, and, where T cancels, the residual.
    void* errors;
    void* prepared;  // on Hopper T, P and factors, PreparedChunk (head, chunk)
    i64 chunks;      // in all sequences
};

// Chunks of sequence n begin at this index, so that no two sequences share one and no search is needed. Packed sequences leave
// some indices unused.
GDN_HOST_DEVICE constexpr i64 first_chunk_index(bool packed, int sequence, i64 start, int tokens, int chunk = kChunk) {
    return packed ? start / chunk + sequence : sequence * ceil_div(tokens, chunk);
}
GDN_HOST_DEVICE constexpr i64 chunk_indices(bool packed, int sequences, int tokens, int chunk = kChunk) {
    return packed ? tokens / chunk + sequences : sequences * ceil_div(tokens, chunk);
}

}  // namespace gdn_cuda::gdn

#ifdef __CUDACC__

#include <gdn_cuda/kernels/common/varlen.cuh>

namespace gdn_cuda::gdn {

// The chunk with an index; a sequence of -1 where the index is unused.
__device__ __forceinline__ ChunkPlace chunk_at(const Tagged& cu_seqlens, int sequences, int tokens, i64 index,
                                               int chunk = kChunk) {
    const bool packed = cu_seqlens.data != nullptr;
    int sequence = 0;
    if (packed) {  // the last sequence whose first index is not past this one
        for (int many = sequences; many > 1;) {
            const int half = many / 2, middle = sequence + half;
            if (first_chunk_index(true, middle, span_of(cu_seqlens, middle, tokens).start, tokens, chunk) <= index)
                sequence = middle;
            many = sequence == middle ? many - half : half;
        }
    } else {
        sequence = static_cast<int>(index / ceil_div(tokens, chunk));
    }
    if (sequence >= sequences) return {-1, 0, 0, 0};
    const Span span = span_of(cu_seqlens, sequence, tokens);
    const i64 first = (index - first_chunk_index(packed, sequence, span.start, tokens, chunk)) * chunk;
    return {first >= 0 && first < span.length ? sequence : -1, static_cast<int>(first), span.start, span.length};
}

}  // namespace gdn_cuda::gdn

#endif
