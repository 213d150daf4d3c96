// Configuration, shared memory and arguments of structured/cauchy_backward, for host and device.
#pragma once

#include <gdn_cuda/kernels/structured/broadcast_operand.cuh>

namespace gdn_cuda::structured {

struct CauchyBackwardConfig {
    DType io;
    bool conj;
    bool wrt_points;  // gradients of points, summed over poles; else of poles and residues, summed over points
    int outputs;      // poles or points whose gradients a block computes
    int threads;

    constexpr bool operator==(const CauchyBackwardConfig&) const = default;

    GDN_FIELDS(io, conj, wrt_points, outputs, threads)
    GDN_HOST_DEVICE constexpr bool wide() const { return io == DType::f64 || io == DType::c128; }
    // Whether both poles of a pair are summed together (cauchy/backward_pairs.cuh).
    GDN_HOST_DEVICE constexpr bool pairs() const { return conj && !wrt_points && io == DType::c64; }
    // Blocks per SM for __launch_bounds__; 0 leaves it to ptxas, which spills a little to fit one more, but not for c64.
    GDN_HOST_DEVICE constexpr int least_blocks() const { return io == DType::c64 ? 0 : 1; }
};

// Per warp, the sums of each output: of first and, for poles, second powers of 1 / (z - w), two parts each; of pairs, four, or
// eight on the axis.
template <CauchyBackwardConfig kConfig, class Real>
struct CauchyBackwardSharedPlan {
    Real sums[kConfig.threads / 32][kConfig.outputs * (kConfig.pairs() ? 8 : 4)];
};

struct CauchyBackwardArgs {
    BroadcastOperand residues, points, poles, grad;
    void *dresidues = nullptr, *dpoints = nullptr, *dpoles = nullptr;  // (leading..., length), contiguous, or null
    i64 size[BroadcastOperand::kMaxLeading] = {};
    int leading = 0, pole_count = 0, point_count = 0;
    i64 rows = 0;
};

}  // namespace gdn_cuda::structured
