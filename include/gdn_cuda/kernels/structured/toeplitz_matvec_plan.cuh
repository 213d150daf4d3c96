// Configuration, shared memory and arguments of structured/toeplitz_matvec, for host and device.
#pragma once

#include <gdn_cuda/kernels/common/fft_layout.cuh>
#include <gdn_cuda/kernels/structured/lines.cuh>

namespace gdn_cuda::structured {

struct ToeplitzMatvecConfig {
    DType io;       // of everything: f32, f64, c64 or c128
    int transform;  // numbers of the longest transform
    int threads;

    constexpr bool operator==(const ToeplitzMatvecConfig&) const = default;

    template <class Visitor>
    constexpr void fields(Visitor&& visit) const {
        visit("io", io);
        visit("transform", transform);
        visit("threads", threads);
    }
    GDN_HOST_DEVICE constexpr int groups() const { return transform / kFftEach / threads; }  // of eight numbers a thread
    // Whether there are registers and shared memory to transform T and a right-hand side at once, and to keep all twiddles.
    GDN_HOST_DEVICE constexpr bool together() const { return groups() == 1; }
    // A real system of order n takes a transform of n complex numbers, a complex one of 2 n.
    GDN_HOST_DEVICE constexpr int longest() const { return is_complex(io) ? transform / 2 : transform; }
};

template <ToeplitzMatvecConfig kConfig>
struct ToeplitzMatvecSharedPlan {
    static constexpr bool kWide = kConfig.io == DType::f64 || kConfig.io == DType::c128;
    static constexpr int kNumber = kWide ? 16 : 8;  // bytes
    static constexpr int kTransform = kConfig.transform, kKept = kConfig.together() ? kTransform : kTransform / kFftEach;
    alignas(16) char exchange[kNumber * (kConfig.together() ? 2 : 1) * fft_padded(kTransform)];
    alignas(16) char twiddles[kNumber * 3 * fft_twiddles(kKept)];
};

// Strides in elements, 0 where a dimension is broadcast.
struct ToeplitzLine {
    const void* data = nullptr;
    i64 step = 0, stride = 0;  // of its numbers, and of the outermost leading dimension
};
// First what every block reads: arguments come from memory, and every piece of 64 bytes takes as long as a number.
struct ToeplitzMatvecArgs {
    static constexpr int kMostInner = Lines::kMaxLeading - 1;
    struct Inner {
        i64 size = 1, below = 0, above = 0, x = 0;  // strides
    };
    ToeplitzLine below, above, x;  // of the diagonals i - j > 0 and < 0; of T^t row and column change places
    void* out = nullptr;           // (leading..., n, columns), contiguous
    int n = 0, first_below = 0,    // 0, where the diagonal itself is below's first number; 1 where it is above's
        log_transform = 0, inner_count = 0;
    i64 x_column_stride = 0, columns = 0, columns_per_block = 1;
    Inner inner[kMostInner] = {};  // leading dimensions but the outermost
};

}  // namespace gdn_cuda::structured
