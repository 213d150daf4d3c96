// Configuration, shared memory and arguments of structured/toeplitz_matvec, for host and device.
#pragma once

#include <gdn_cuda/kernels/common/fft_layout.cuh>
#include <gdn_cuda/kernels/structured/cauchy_plan.cuh>

namespace gdn_cuda::structured {

struct ToeplitzMatvecConfig {
    DType io;       // of everything: f32, f64, c64 or c128
    int transform;  // numbers of the longest transform; 0 where sums are formed directly
    int threads;

    constexpr bool operator==(const ToeplitzMatvecConfig&) const = default;

    template <class Visitor>
    constexpr void fields(Visitor&& visit) const {
        visit("io", io);
        visit("transform", transform);
        visit("threads", threads);
    }
    static constexpr int kRows = 32, kMostDirect = 256;  // a block's outputs, and the longest system, without transforms
    GDN_HOST_DEVICE constexpr bool direct() const { return transform == 0; }
    GDN_HOST_DEVICE constexpr int groups() const { return transform / kFftEach / threads; }  // of eight numbers a thread
    // A real system of order n takes a transform of n complex numbers, a complex one of 2 n.
    GDN_HOST_DEVICE constexpr int longest() const {
        return direct() ? kMostDirect : is_complex(io) ? transform / 2 : transform;
    }
};

template <ToeplitzMatvecConfig kConfig>
struct ToeplitzMatvecSharedPlan {
    static constexpr bool kWide = kConfig.io == DType::f64 || kConfig.io == DType::c128;
    static constexpr int kNumber = kWide ? 16 : 8, kWarps = kConfig.threads / 32;  // bytes of a number; real ones waste half
    static constexpr int kWindow = ToeplitzMatvecConfig::kMostDirect + ToeplitzMatvecConfig::kRows;
    static constexpr int kDirect = kWindow + ToeplitzMatvecConfig::kMostDirect + kWarps * ToeplitzMatvecConfig::kRows;
    // For transforms their exchange; else diagonals, the right-hand side, and a row of sums for every warp.
    alignas(16) char numbers[kNumber * (kConfig.direct() ? kDirect : fft_padded(kConfig.transform))];
};

struct ToeplitzMatvecArgs {
    CauchyOperand column, row, x;
    i64 x_column_stride = 0;
    void* out = nullptr;  // (leading..., n, columns), contiguous
    i64 size[CauchyOperand::kMaxLeading] = {};
    int leading = 0, n = 0, log_transform = 0;
    i64 columns = 0, columns_per_block = 1, rows = 0;
    int transpose = 0;
    unsigned parts = 1;  // blocks of a system, or of a tile of its rows
};

}  // namespace gdn_cuda::structured
