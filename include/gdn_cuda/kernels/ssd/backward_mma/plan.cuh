// Configuration, shared memory and arguments of ssd/backward_mma, for host and device.
#pragma once

#include <gdn_cuda/kernels/chunked/mma_lane.cuh>
#include <gdn_cuda/kernels/ssd/gradients_plan.cuh>

namespace gdn_cuda::ssd {

using gdn::kMmaTileElements;
using gdn::MmaTile;

struct SsdBackwardMmaConfig {
    DType io;
    int states;  // 64, 128 or 256; fewer are padded with zeros

    constexpr bool operator==(const SsdBackwardMmaConfig&) const = default;

    GDN_FIELDS(io, states)

    static constexpr int kWarps = 8;
    GDN_HOST_DEVICE static constexpr int threads() { return kWarps * 32; }
    // Blocks of 64 states.
    GDN_HOST_DEVICE constexpr int state_blocks() const { return states / kMmaTileElements; }
};

struct SsdBackwardMmaArgs : SsdGradientArgs {
    Rows x, out_gradient, B, C;
    // (chunks, heads, channels, states) in x's dtype: the state before each chunk, and the gradient of that after it.
    const void *states = nullptr, *gradients = nullptr;
};

// The same for every number of states, of which 64 are there at a time.
struct SsdBackwardMmaPlan {
    static constexpr int kStages = 3, kHalves = 2;
    // 64 states of a row tile, S or E, and of the chunk's tokens, C or B. Or, without a row tile, C and B.
    struct Stage {
        MmaTile first, tokens;
    };
    struct RowTile {
        MmaTile x, dy;
    };
    Stage stages[kStages];
    RowTile rows[2];      // row tile % 2
    MmaTile scores;       // M' of the row tile, on and below the diagonal; at the end N
    ChunkSteps steps[3];  // row tile % 3: the last two's, and the next one's
    // Sums over a head's channels, a number a token; `across` of the row tile's head % 2, as it is found first.
    struct alignas(16) Sums {
        float read[kHalves][kChunk];     // of the state before, by outputs; by the halves of the states that warps have
        float written[kHalves][kChunk];  // into the state after; by halves of the channels
        float scaled[kHalves][kChunk];   // of the token's own δ x; the same
        float states[SsdBackwardMmaConfig::kWarps], D[SsdBackwardMmaConfig::kWarps];
    };
    Sums sums;
    float across[2][6][kChunk];  // between tokens before and after each boundary, by the warps below the diagonal
    SsdChunkWork work;
    // The chunk's first token, of the first head, or of the group: addresses take too many instructions to be found again for
    // every tile.
    struct Sources {
        const void *x, *dy, *C, *B;
    };
    Sources sources;
};
static_assert(sizeof(SsdBackwardMmaPlan) <= kSharedBytesEverywhere);

}  // namespace gdn_cuda::ssd
