// Configuration and shared memory of structured/toeplitz_sums, for host and device; its arguments are toeplitz_matvec's.
#pragma once

#include <gdn_cuda/kernels/structured/toeplitz_matvec_plan.cuh>

namespace gdn_cuda::structured {

struct ToeplitzSumsConfig {
    DType io;   // of everything: f32, f64, c64 or c128
    int strip;  // rows of a thread
    int threads;

    constexpr bool operator==(const ToeplitzSumsConfig&) const = default;

    template <class Visitor>
    constexpr void fields(Visitor&& visit) const {
        visit("io", io);
        visit("strip", strip);
        visit("threads", threads);
    }
    static constexpr int kPanel = 1024;  // columns of T in shared memory
    GDN_HOST_DEVICE constexpr int warps() const { return threads / 32; }
    GDN_HOST_DEVICE constexpr int rows() const { return 32 * strip; }  // of a block
    GDN_HOST_DEVICE constexpr bool wide() const { return io == DType::f64 || io == DType::c128; }
    // A multiprocessor: told nothing, ptxas keeps the addresses of the next right-hand side in twice the registers.
    GDN_HOST_DEVICE constexpr int least_blocks() const { return 64 / strip / bytes_of(io) < 1 ? 1 : 64 / strip / bytes_of(io); }
};

template <ToeplitzSumsConfig kConfig>
struct ToeplitzSumsSharedPlan {
    static constexpr int kNumber = bytes_of(kConfig.io), kStrip = kConfig.strip, kPanel = ToeplitzSumsConfig::kPanel;
    // Strips of 16 bytes meet different banks as they are; longer ones do with 16 bytes between them.
    static constexpr int kPitch = kStrip + (kStrip * kNumber > 16 ? 16 / kNumber : 0);
    alignas(16) char diagonals[kNumber * kPitch * (kPanel / kStrip + 32)];
    alignas(16) char right[kNumber * kPanel];
    alignas(16) char sums[kNumber * kPitch * 32 * kConfig.warps()];  // every warp has some for all rows
};

}  // namespace gdn_cuda::structured
