// What ssd/backward and ssd/backward_mma have in common, for host and device: a chunk's place, and where gradients go.
#pragma once

#include <gdn_cuda/kernels/ssd/scan_plan.cuh>

namespace gdn_cuda::ssd {

struct SsdGradientArgs : SsdStepsArgs {
    PerHead D;  // may be absent; a number a head
    int groups = 0, channels = 0, state_count = 0;
    int tiles_of_head = 1;
    // Contiguous: (batch, tokens, heads, channels), (batch, tokens, groups, states) and (batch, tokens, heads).
    void *dx = nullptr, *dB = nullptr, *dC = nullptr;
    float* ddt = nullptr;
    float* sums = nullptr;  // (dA, ddt_bias, dD; slots, heads): a chunk's part
};

// A block's chunk of a sequence, and its group's row tiles, which it takes one after the other. Kept out of registers.
struct SsdChunkWork {
    int group, first_tile, tiles;
    SlotWork place;
    int slot, count;  // the chunk's, and its tokens
    bool has_tail;    // whether what follows them in the chunk is another sequence's
};

}  // namespace gdn_cuda::ssd
