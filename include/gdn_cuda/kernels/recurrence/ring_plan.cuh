// Rings of tokens that the states in a pool lack: arguments of the kernels that decode by them, for host and device.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda {

inline constexpr int kMostRingEntries = 32;  // one for each lane of a warp
inline constexpr int kMostRingTokens = 16;   // new ones of a sequence
inline constexpr unsigned kRingPendingBits = 16;

// A tensor of the ring: (slots, W, heads, …) with the last dimension contiguous; strides in elements.
struct RingTensor {
    void* data;
    i64 slot, entry, head;
};

struct RingArgs {
    int sequences, tokens;
    int block_rows;  // rows of a block
    Tagged cu_seqlens;

    Tagged slots;  // (sequences,); if absent, sequence n has slot n
    i64 slots_sequence;
    i64 slot_count, null_slot;
    void* pool;     // (slots, heads, rows, columns), a slot contiguous
    i64 pool_slot;  // this and the other strides are in elements
    float* scales;  // for int8 states: (slots, heads, rows, columns / 32)
    i64 scales_slot;

    int entries;  // W
    // (slots,): how many entries the state lacks, in the lower 16 bits. The upper ones count the blocks of the running call
    // that have read the ring; they are 0 between calls.
    unsigned* pending;
    // (sequences,): how many of the last call's tokens are accepted; this call's are counted by the next one then. If absent,
    // every token is accepted at once.
    Tagged accepted;
    // Sequences, or all, whose state takes what is accepted, whether or not the ring has room for more.
    const bool* fold_mask;
    bool fold;

    GDN_HOST_DEVICE bool verifies() const { return accepted.data != nullptr; }
};

}  // namespace gdn_cuda
