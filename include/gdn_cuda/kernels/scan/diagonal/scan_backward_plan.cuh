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
    static constexpr int kSums = 4;  // of a block: of A's two parts, of delta, of delta_a
};

// Gradients are of what they are named after, with its shape. Complex numbers are complex64, everything is contiguous.
struct DiagonalScanBackwardArgs {
    DiagonalInputs inputs;
    const void *x = nullptr, *initial_state = nullptr;    // initial_state: null for zeros
    const void *grad = nullptr, *grad_of_last = nullptr;  // of x, of the last state
    const double* maps = nullptr;                         // (rows, parts, 4) of scan/diagonal_scan_parts, in reverse
    void *of_input = nullptr, *of_initial_state = nullptr;
    float *of_delta = nullptr, *of_delta_a = nullptr;  // (batch, P, L) where the step size varies, else null
    double* sums = nullptr;                            // (batch, parts, P, kSums)
};

}  // namespace gdn_cuda::scan
