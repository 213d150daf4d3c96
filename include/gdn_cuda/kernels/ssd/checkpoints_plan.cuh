// Configuration and arguments of ssd/checkpoints, for host and device.
#pragma once

#include <gdn_cuda/kernels/ssd/scan_plan.cuh>

namespace gdn_cuda::ssd {

struct SsdCheckpointsConfig {
    int warps;

    constexpr bool operator==(const SsdCheckpointsConfig&) const = default;

    GDN_FIELDS(warps)

    GDN_HOST_DEVICE constexpr int threads() const { return 32 * warps; }
};

// After which tokens a call reports states: `every` so many of a sequence, or `offsets` (sequences) of each, or `boundaries`
// (boundary_count), of all tokens of a packed batch.
struct SsdCheckpointsArgs {
    Tagged cu_seqlens, offsets, boundaries;
    int every = 0, boundary_count = 0;
    int sequences = 0, tokens = 0, heads = 0;
    i64 head_elements = 0;
    // The table that is made.
    SsdChunk* chunks = nullptr;
    int slots = 0;
    int *first = nullptr, *first_row = nullptr, *first_before = nullptr;
    SsdStates checkpoints, before;
    int checkpoint_rows = 0, before_rows = 0;

    bool reports() const { return every > 0 || offsets.data != nullptr || boundaries.data != nullptr; }
};

}  // namespace gdn_cuda::ssd
