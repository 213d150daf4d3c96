// The schedule of gdn/prefill_ahead, in which blocks that prepare chunks serve blocks that own rows of the state: its
// configuration, shared memory and arguments, for host and device. Nothing here is GDN's own.
#pragma once

#include <gdn_cuda/kernels/chunked/plan.cuh>

namespace gdn_cuda::gdn {

struct PrefillAheadConfig {
    int head_k;  // 64, 96 or 128; shorter keys are zero-padded
    DType io;

    constexpr bool operator==(const PrefillAheadConfig&) const = default;

    GDN_FIELDS(head_k, io)

    // For all blocks: one that prepares has the helper roles of a block of gdn/prefill, and one warp that hands
    // over; one that owns rows of the state has three warps that load, and two warpgroups.
    GDN_HOST_DEVICE constexpr ChunkedConfig block() const {
        return {.head_k = head_k, .value_groups = 1, .inverse_groups = 2, .stages = 3, .io = io};
    }
    GDN_HOST_DEVICE constexpr int threads() const { return block().threads(); }
};

template <ChunkedConfig kConfig>
struct PreparerPlan {
    ChunkedPlan<kConfig> block;
    CachedFactors<kConfig> scalars;  // on their way to global memory
};

template <ChunkedConfig kConfig>
struct OwnerPlan {
    using Factors = CachedFactors<kConfig>;
    using CancelFlags = typename ChunkedPlan<kConfig>::CancelFlags;
    struct Stage {
        SwizzledTile key[kConfig.key_tiles()], query[kConfig.key_tiles()], value[1];
        SwizzledTile inverse, scores;
    };
    // Left operands as registers hold them, from a warp of the chain to the same warp of the outputs.
    struct alignas(16) Fragment {
        unsigned registers[4];
    };
    struct Fragments {
        Fragment state[kConfig.head_k / 16][kWarpgroup], values[kChunk / 16][kWarpgroup];
    };
    Stage stages[kConfig.stages];
    SwizzledTile inverse_residual[2];  // even chunks', and odd ones'
    SwizzledTile output[1];
    Fragments fragments;
    Factors factors[kConfig.stages];
    ChunkedWork work;
    alignas(4) bool by_tokens;  // the chunk's outputs come from the chain (prefill/by_token.cuh)
    alignas(4) bool is_stored;  // the chunk's outputs, otherwise than by TMA from their tile
    unsigned long long stage_full[kConfig.stages], stage_empty[kConfig.stages];
    // A phase a chunk, full and empty: left operands, and the outputs' tile; the chain's X^T T^T put into the tensor cores'
    // queue.
    unsigned long long state_full, state_empty, products_queued, values_full, values_empty, output_full, output_empty;
    unsigned long long tail_full;  // keys and values of a chunk that ends the sequence within it
};

// One launch runs `window` chunks of every sequence, from `first_chunk` on.
struct PrefillAheadArgs {
    ChunkedArgs prefill;
    void* cached;            // CachedChunk (sequence and head, chunk of the window)
    unsigned* cached_count;  // zeros (sequence and head, chunk of the sequence): 1 + the columns that cancel, as bits, times 2
    float* carried;          // states (sequence and head, dv, dk) from one launch to the next
    int pairs;               // (sequence, value head)
    int preparers, row_tiles;              // blocks of a pair: that prepare, that own rows of the state
    int first_chunk, window, most_chunks;  // most_chunks: the longest sequence's

    GDN_HOST_DEVICE constexpr int last_chunk(int, int chunks) const {
        return chunks < first_chunk + window ? chunks : first_chunk + window;
    }
};

}  // namespace gdn_cuda::gdn
