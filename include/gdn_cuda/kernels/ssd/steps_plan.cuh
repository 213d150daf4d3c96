// Configuration and arguments of ssd/steps, for host and device.
#pragma once

#include <gdn_cuda/kernels/chunked/chunk.cuh>
#include <gdn_cuda/kernels/common/uncovered_zeros_plan.cuh>

namespace gdn_cuda::ssd {

using gdn::kChunk;

struct SsdStepsConfig {
    int heads;  // of a block, a warp each

    constexpr bool operator==(const SsdStepsConfig&) const = default;

    GDN_FIELDS(heads)

    GDN_HOST_DEVICE constexpr int threads() const { return 32 * heads; }
};

// One number a head.
struct PerHead {
    Tagged values;
    i64 head = 0, channel = 0;  // strides in elements; channel: of D
};

// A head's steps δ in a chunk, and the sums of δA, in log2, from the chunk's first token on. Past the sequence δ is 0.
struct alignas(16) ChunkSteps {
    float gate[kChunk], delta[kChunk];
};

// A chunk's sequence and its place there; without tokens if no sequence has the slot.
struct SlotWork {
    i64 start = 0;  // the sequence's first token in its batch
    int batch = 0, length = 0, first = 0;
};

// A chunk of a call that reports states at other tokens than the last (ssd/checkpoints).
struct alignas(8) SsdChunk {
    int first = 0, count = 0;  // its tokens, from the first of its row on
    int sequence = 0;
    int row = 0, rows = 0;  // of the checkpoints that are the state after it
    int before = -1;        // of states_before: the state before it; negative: none
};

// Chunks have slots: those of a padded batch in order; a packed sequence's from start / 64 + its number on. They are below
// tokens / 64 + sequences whatever cu_seqlens holds, and apart unless it decreases.
struct SsdStepsArgs {
    Tagged dt;
    i64 dt_batch = 0, dt_token = 0, dt_head = 0;
    PerHead A, dt_bias;                 // dt_bias may be absent
    float lowest = 0.f, highest = 0.f;  // of δ
    bool softplus = false;
    // (batch, tokens): a row's state is zeroed where it changes, and before its first token if not 0
    const int* seq_idx = nullptr;
    i64 seq_idx_batch = 0;
    Tagged cu_seqlens;
    int sequences = 0, tokens = 0, heads = 0, slots = 0;
    const SsdChunk* chunks = nullptr;  // (slots,): where these are told, those of a slot
    ChunkSteps* steps = nullptr;       // (slot, head)
};
struct SsdStepsLaunch : SsdStepsArgs {
    unsigned* counters = nullptr;  // of the kernel that follows: zeroed
    i64 counter_count = 0;
    common::TokenRows out;  // rows of packed tokens that no sequence has are zeroed; may be absent
};

}  // namespace gdn_cuda::ssd
