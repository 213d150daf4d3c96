// Configuration and shared memory of structured/toeplitz_sums, for host and device; its arguments are toeplitz_matvec's.
#pragma once

#include <gdn_cuda/kernels/structured/toeplitz/matvec_plan.cuh>

namespace gdn_cuda::structured {

struct ToeplitzSumsConfig {
    DType io;   // all operands: f32, f64, c64 or c128
    int strip;  // rows per thread
    int threads;

    constexpr bool operator==(const ToeplitzSumsConfig&) const = default;

    GDN_FIELDS(io, strip, threads)
    static constexpr int kPanel = 1024;  // columns of T in shared memory at a time
    GDN_HOST_DEVICE constexpr int warps() const { return threads / 32; }
    GDN_HOST_DEVICE constexpr int rows() const { return 32 * strip; }  // per block
    GDN_HOST_DEVICE constexpr bool wide() const { return io == DType::f64 || io == DType::c128; }
    // Blocks per SM for __launch_bounds__: without it ptxas keeps the addresses of the next right-hand side and uses
    // twice the registers.
    GDN_HOST_DEVICE constexpr int least_blocks() const { return 64 / strip / bytes_of(io) < 1 ? 1 : 64 / strip / bytes_of(io); }
};

template <ToeplitzSumsConfig kConfig>
struct ToeplitzSumsSharedPlan {
    static constexpr int kNumber = bytes_of(kConfig.io), kStrip = kConfig.strip, kPanel = ToeplitzSumsConfig::kPanel;
    // Strips of 16 bytes hit different banks; longer strips need 16 bytes of padding.
    static constexpr int kPitch = kStrip + (kStrip * kNumber > 16 ? 16 / kNumber : 0);
    alignas(16) char diagonals[kNumber * kPitch * (kPanel / kStrip + 32)];
    alignas(16) char right[kNumber * kPanel];
    alignas(16) char sums[kNumber * kPitch * 32 * kConfig.warps()];  // partial sums of all rows per warp
};

}  // namespace gdn_cuda::structured
