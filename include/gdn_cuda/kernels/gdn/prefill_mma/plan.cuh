// Configuration and arguments of gdn/prefill_mma, for host and device.
#pragma once

#include <gdn_cuda/kernels/gdn/chunked_mma/plan.cuh>

namespace gdn_cuda::gdn {

struct PrefillMmaConfig {
    int head_k;      // 64, 96, 128, 192 or 256; shorter keys are zero-padded
    int key_stages;  // chunks of keys in shared memory; 2: the next chunk is loaded during this one
    int warps;       // 4, or 8: four compute the inverse while four compute the scores
    DType io;

    constexpr bool operator==(const PrefillMmaConfig&) const = default;

    GDN_FIELDS(head_k, key_stages, warps, io)

    static constexpr Direction direction = Direction::forward;

    GDN_HOST_DEVICE static constexpr bool has_queries() { return true; }
    GDN_HOST_DEVICE constexpr int threads() const { return warps * 32; }
    GDN_HOST_DEVICE constexpr int blocks_at_least() const { return 8 / warps; }
    GDN_HOST_DEVICE constexpr int rows_per_block() const { return warps * kMmaWarpRows; }
    GDN_HOST_DEVICE constexpr int key_tiles() const { return (head_k + kMmaTileElements - 1) / kMmaTileElements; }
    GDN_HOST_DEVICE constexpr int query_tiles() const { return key_tiles(); }
};

struct PrefillMmaArgs {
    GdnCall recurrence;
    DType state;
};

}  // namespace gdn_cuda::gdn
