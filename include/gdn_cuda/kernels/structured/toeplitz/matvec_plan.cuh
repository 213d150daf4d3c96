// Configuration, shared memory and arguments of structured/toeplitz_matvec, for host and device.
#pragma once

#include <gdn_cuda/kernels/common/fft_layout.cuh>
#include <gdn_cuda/kernels/structured/broadcast_operand.cuh>

namespace gdn_cuda::structured {

struct ToeplitzMatvecConfig {
    DType io;       // all operands: f32, f64, c64 or c128
    int transform;  // complex values of the longest transform
    int threads;

    constexpr bool operator==(const ToeplitzMatvecConfig&) const = default;

    GDN_FIELDS(io, transform, threads)
    GDN_HOST_DEVICE constexpr int groups() const {
        return transform / kFftEach / threads;
    }  // eight values per thread and group
    // Whether registers and shared memory suffice to transform T and a right-hand side together, and to keep all twiddles.
    GDN_HOST_DEVICE constexpr bool together() const { return groups() == 1; }
    // A real system of order n needs a transform of n complex values, a complex one of 2 n.
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
struct ToeplitzOperand {
    const void* data = nullptr;
    i64 step = 0, stride = 0;  // between elements, and in the outermost leading dimension
};
// Fields that every block reads come first: arguments are loaded from memory, and loading 64 bytes takes as long as loading
// one.
struct ToeplitzMatvecArgs {
    static constexpr int kMostInner = BroadcastOperand::kMaxLeading - 1;
    struct Inner {
        i64 size = 1, below = 0, above = 0, x = 0;  // strides
    };
    ToeplitzOperand below, above, x;  // diagonals i - j > 0 and i - j < 0; row and column are swapped for T^t
    void* out = nullptr;              // (leading..., n, columns), contiguous
    int n = 0, first_below = 0,       // 0 if the main diagonal is the first element of `below`, 1 if of `above`
        log_transform = 0, inner_count = 0;
    i64 x_column_stride = 0, columns = 0, columns_per_block = 1;
    Inner inner[kMostInner] = {};  // all leading dimensions but the outermost
};

}  // namespace gdn_cuda::structured
