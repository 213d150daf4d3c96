// The tokens of a chunk: which they are, and their loads.
#pragma once

#include <gdn_cuda/kernels/chunked/plan.cuh>
#include <gdn_cuda/kernels/common/tma.cuh>
#include <gdn_cuda/kernels/hopper/pipeline.cuh>

namespace gdn_cuda::gdn {

__device__ __forceinline__ bool is_packed(const PrefillArgs& args) {
    return args.recurrence.cu_seqlens.data != nullptr;
}

// Tokens from a chunk to the next of the block's. kSpaced: the block takes some of a segment's chunks (prefill_ahead.cuh). Read
// from shared memory each time, to save registers.
template <bool kSpaced>
__device__ __forceinline__ int chunk_spacing(const PrefillWork& work) {
    if constexpr (kSpaced) return work.spacing;
    return kChunk;
}
template <bool kSpaced = false>
__device__ __forceinline__ int tokens_in(const PrefillWork& work, int chunk) {
    return min(kChunk, work.length - chunk * chunk_spacing<kSpaced>(work));
}

// Zeroes keys and values past the end of a packed sequence, which are the next one's and may be infinite or NaN.
template <PrefillConfig kConfig, int kThreads = kWarpgroup, class Stage>
__device__ __forceinline__ void clear_tokens_from(Stage& stage, int thread, int count) {
    constexpr int kTiles = kConfig.key_tiles() + kConfig.value_groups;
#pragma unroll 1
    for (int i = thread; i < (kChunk - count) * kTiles * 8; i += kThreads) {
        const int row = count + i / (kTiles * 8), piece = i % (kTiles * 8), tile = piece / 8;
        auto& cleared = tile < kConfig.key_tiles() ? stage.key[tile] : stage.value[tile - kConfig.key_tiles()];
        store_shared(row_piece(tile_row(cleared.bytes, row), piece % 8), uint4{});
    }
}

}  // namespace gdn_cuda::gdn
