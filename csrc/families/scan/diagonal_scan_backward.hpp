// scan/diagonal_scan_backward on the host: its Spec.
#pragma once

#include <gdn_cuda/kernels/scan/diagonal/scan_backward_plan.cuh>

#include "diagonal_parts.hpp"

namespace gdn_cuda::scan {

struct DiagonalScanBackward : DiagonalSpec<DiagonalScanBackward, DiagonalScanBackwardConfig, DiagonalScanBackwardArgs> {
    GDN_KERNEL(DiagonalScanBackward, scan, diagonal_scan_backward, DiagonalScanBackwardConfig, DiagonalScanBackwardArgs,
               "gradients of diagonal_scan: the recurrence in reverse");
};

}  // namespace gdn_cuda::scan
