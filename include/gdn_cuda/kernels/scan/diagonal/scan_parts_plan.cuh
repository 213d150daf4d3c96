// Configuration and arguments of scan/diagonal_scan_parts, for host and device.
#pragma once

#include <gdn_cuda/kernels/scan/diagonal/inputs.cuh>

namespace gdn_cuda::scan {

struct DiagonalScanPartsConfig {
    int threads;
    bool varying;
    bool reverse;  // the scan of gradients, from the last token to the first

    constexpr bool operator==(const DiagonalScanPartsConfig&) const = default;

    GDN_FIELDS(threads, varying, reverse)
    GDN_HOST_DEVICE constexpr int tile() const { return threads * kDiagonalTokens; }
};

struct DiagonalScanPartsArgs {
    DiagonalInputs inputs;  // in reverse, `input` is the gradient of x
    // (rows, parts, 4): the complex a and b of the map x -> a x + b of each part, except the part scanned last
    double* maps = nullptr;
};

}  // namespace gdn_cuda::scan
