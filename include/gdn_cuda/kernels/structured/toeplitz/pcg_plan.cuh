// Configuration, shared memory and arguments of structured/toeplitz_pcg, for host and device.
#pragma once

#include <gdn_cuda/kernels/common/fft_layout.cuh>
#include <gdn_cuda/kernels/structured/broadcast_operand.cuh>

namespace gdn_cuda::structured {

struct ToeplitzPcgConfig {
    DType io;       // f32 or f64
    int transform;  // complex values per transform
    int threads;

    constexpr bool operator==(const ToeplitzPcgConfig&) const = default;

    GDN_FIELDS(io, transform, threads)
    GDN_HOST_DEVICE constexpr int groups() const {
        return transform / kFftEach / threads;
    }  // eight values per thread and group
    GDN_HOST_DEVICE constexpr int rows() const { return 2 * transform; }
    // Scratch doubles per block: three spectra, solution, residual and direction.
    GDN_HOST_DEVICE constexpr int scratch() const { return 3 * transform + 3 * rows(); }
};

template <ToeplitzPcgConfig kConfig>
struct ToeplitzPcgSharedPlan {
    static constexpr int kPoints = kConfig.transform, kWarps = kConfig.threads / 32;
    struct alignas(16) Number {
        double re, im;
    };
    Number exchange[fft_padded(kPoints)], twiddles[kPoints / 4], roots[kPoints / kFftEach];
    struct {
        double column_size, right_scale, solution_scale, allowed;
    } rhs;                      // for the current right-hand side
    double sums[3][2][kWarps];  // per warp, two sums at a time; three buffers, so that a reduction needs one barrier
};

struct ToeplitzPcgArgs {
    BroadcastOperand column, right;
    i64 right_column_stride = 0;
    void *out = nullptr, *info = nullptr;  // (leading..., n, columns), contiguous; an int per system, zero before the launch
    double* scratch = nullptr;
    i64 size[BroadcastOperand::kMaxLeading] = {};
    int leading = 0, n = 0;
    i64 columns = 0, rows = 0;  // rows: systems
    double epsilon = 0;
};

}  // namespace gdn_cuda::structured
