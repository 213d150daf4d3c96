// Configuration and arguments of gdn/kda_order, for host and device.
#pragma once

#include <gdn_cuda/kernels/gdn/kda/window_plan.cuh>

namespace gdn_cuda::gdn {

struct KdaOrderConfig {
    int warps;

    constexpr bool operator==(const KdaOrderConfig&) const = default;

    GDN_FIELDS(warps)

    GDN_HOST_DEVICE constexpr int threads() const { return warps * 32; }
};

struct KdaOrderArgs {
    Tagged cu_seqlens;
    int sequences, tokens;
    int count;              // entries of both tables
    int* positions;         // as KdaWindow has them
    KdaChunkPlace* places;  // zeros before
};

}  // namespace gdn_cuda::gdn
