// The tokens of a chunk: which they are, and their loads.
#pragma once

#include <gdn_cuda/kernels/chunked/plan.cuh>
#include <gdn_cuda/kernels/common/tma.cuh>
#include <gdn_cuda/kernels/hopper/pipeline.cuh>

namespace gdn_cuda::gdn {

__device__ __forceinline__ bool is_packed(const ChunkedArgs& args) {
    return args.call.cu_seqlens.data != nullptr;
}

// A block counts its chunks in the order in which it takes them. Whatever asks which tokens a chunk has asks these functions.
// Where it is in time:
template <ChunkedConfig kConfig>
__device__ __forceinline__ int in_time(const PassTokens& tokens, int chunk) {
    if constexpr (kConfig.direction == Direction::backward) return tokens.chunks - 1 - chunk;
    return chunk;
}
// The one that may be short, as the sequence ends within it.
template <ChunkedConfig kConfig>
__device__ __forceinline__ int tail_chunk(const PassTokens& tokens) {
    return in_time<kConfig>(tokens, tokens.chunks - 1);
}

// Tokens from a chunk to the next of the block's. kStrided: the block takes some of a segment's chunks
// (prefill_ahead.cuh). Read from shared memory each time, to save registers.
template <bool kStrided>
__device__ __forceinline__ int chunk_stride(const PassTokens& tokens) {
    if constexpr (kStrided) return tokens.chunk_stride;
    return kChunk;
}
template <ChunkedConfig kConfig, bool kStrided = false>
__device__ __forceinline__ int first_token(const PassTokens& tokens, int chunk) {
    return static_cast<int>(tokens.start) + in_time<kConfig>(tokens, chunk) * chunk_stride<kStrided>(tokens);
}
// Counted from the pass's first token.
template <ChunkedConfig kConfig>
__device__ __forceinline__ int end_of(const PassTokens& tokens, int chunk) {
    return (in_time<kConfig>(tokens, chunk) + 1) * kChunk;
}
template <ChunkedConfig kConfig, bool kStrided = false>
__device__ __forceinline__ int tokens_in(const PassTokens& tokens, int chunk) {
    return min(kChunk, tokens.length - in_time<kConfig>(tokens, chunk) * chunk_stride<kStrided>(tokens));
}
// Whether the sequence ends within the chunk: what follows it in the chunk is another one's, or past the tensor.
template <ChunkedConfig kConfig>
__device__ __forceinline__ bool has_tail(const PassTokens& tokens, int chunk) {
    return tokens_in<kConfig>(tokens, chunk) < kChunk;
}

__device__ __forceinline__ int batch_of(const ChunkedArgs& args, const ChunkedWork& work) {
    return is_packed(args) ? 0 : work.sequence;
}

// Zeroes what a chunk has past the end of a packed sequence: the next one's tokens, which may be infinite or NaN. Forward needs
// no zeros in queries, as their outputs are not stored; the backward sums over all tokens of the chunk.
template <ChunkedConfig kConfig, int kThreads = kWarpgroup, class Stage>
__device__ __forceinline__ void clear_tokens_from(Stage& stage, int thread, int count) {
    constexpr int kKeyTiles = kConfig.key_tiles(), kFirstQuery = kKeyTiles + kConfig.value_groups,
                  kTiles = kFirstQuery + (kConfig.trains ? kKeyTiles : 0);
#pragma unroll 1
    for (int i = thread; i < (kChunk - count) * kTiles * 8; i += kThreads) {
        const int row = count + i / (kTiles * 8), vector = i % (kTiles * 8), tile = vector / 8;
        auto& cleared = tile < kKeyTiles     ? stage.key[tile]
                        : tile < kFirstQuery ? stage.value[tile - kKeyTiles]
                                             : stage.query[tile - kFirstQuery];
        store_shared(row_vector(tile_row(cleared.bytes, row), vector % 8), uint4{});
    }
}

}  // namespace gdn_cuda::gdn
