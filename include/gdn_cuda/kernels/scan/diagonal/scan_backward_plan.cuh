// Configuration and arguments of scan/diagonal_scan_backward, for host and device.
#pragma once

#include <gdn_cuda/kernels/scan/diagonal/inputs.cuh>

namespace gdn_cuda::scan {

struct DiagonalScanBackwardConfig {
    int threads;
    bool varying;

    constexpr bool operator==(const DiagonalScanBackwardConfig&) const = default;

    GDN_FIELDS(threads, varying)
    GDN_HOST_DEVICE constexpr int tile() const { return threads * kDiagonalTokens; }
    static constexpr int kSums = 4;  // sums of a block: the real and imaginary part of A's gradient, delta's, delta_a's
};

// A gradient has the shape of its tensor. Complex numbers are complex64, everything is contiguous.
struct DiagonalScanBackwardArgs {
    DiagonalInputs inputs;
    const void *x = nullptr, *initial_state = nullptr;    // initial_state: null for zeros
    const void *grad = nullptr, *grad_of_last = nullptr;  // the gradients of x and of the last state
    const double* maps = nullptr;                         // (rows, parts, 4) of scan/diagonal_scan_parts, in reverse
    void *dinput = nullptr, *dinitial_state = nullptr;
    float *ddelta = nullptr, *ddelta_a = nullptr;  // (batch, P, L) if the step size varies, otherwise null
    double* sums = nullptr;                        // (batch, parts, P, kSums)
};

}  // namespace gdn_cuda::scan
