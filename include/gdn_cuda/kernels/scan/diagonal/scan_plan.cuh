// Configuration and arguments of scan/diagonal_scan, for host and device.
#pragma once

#include <gdn_cuda/kernels/scan/diagonal/inputs.cuh>

namespace gdn_cuda::scan {

struct DiagonalScanConfig {
    int threads;   // per block; a tile has four tokens of each thread
    bool varying;  // a step size varies over time

    constexpr bool operator==(const DiagonalScanConfig&) const = default;

    GDN_FIELDS(threads, varying)
    GDN_HOST_DEVICE constexpr int tile() const { return threads * kDiagonalTokens; }
};

struct DiagonalScanArgs {
    DiagonalInputs inputs;
    const void* initial_state = nullptr;  // (batch, P) complex64; null: zeros
    const double* maps = nullptr;         // (rows, parts, 4) of scan/diagonal_scan_parts
    void* x = nullptr;                    // (batch, P, L) complex64
    void* last_state = nullptr;           // (batch, P) complex64
};

}  // namespace gdn_cuda::scan
