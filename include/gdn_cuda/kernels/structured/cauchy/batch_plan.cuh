// Configuration and shared memory of structured/cauchy_batch, for host and device. Its arguments are structured/cauchy's.
#pragma once

#include <gdn_cuda/kernels/structured/cauchy/plan.cuh>

namespace gdn_cuda::structured {

struct CauchyBatchConfig {
    DType io;  // f32, bf16 or f16

    constexpr bool operator==(const CauchyBatchConfig&) const = default;

    GDN_FIELDS(io)
    static constexpr int kRows = 16;    // rows of residues
    static constexpr int kWarps = 16;   // each takes every sixteenth group of poles
    static constexpr int kPoints = 32;  // per block; every warp computes all of them
    static constexpr int kGroup = 32;   // poles per group; each lane loads one
    GDN_HOST_DEVICE static constexpr int threads() { return kWarps * 32; }
};

// A tf32 A fragment (mma.m16n8k8) of eight poles' residues: per lane, two poles of two adjacent rows.
struct CauchyBatchOperand {
    static constexpr int kPoles = 8;
    float by_lane[32][2][2];
    float unused[16];  // padding: stores of a warp's 32 poles hit different banks
};

struct CauchyBatchSharedPlan {
    using Config = CauchyBatchConfig;
    struct alignas(16) Group {
        CauchyBatchOperand high[Config::kGroup / CauchyBatchOperand::kPoles],
            residual[Config::kGroup / CauchyBatchOperand::kPoles];
        float poles[Config::kGroup];
    };
    union {
        Group groups[Config::kWarps];
        float sums[Config::kWarps][Config::kRows][Config::kPoints + 4];  // once groups has been read
    };
    bool recompute[Config::kPoints], recompute_all;
    float min_sum;
};

}  // namespace gdn_cuda::structured
