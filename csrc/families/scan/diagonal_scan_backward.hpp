// scan/diagonal_scan_backward on the host: its Spec.
#pragma once

#include <gdn_cuda/kernels/scan/diagonal/scan_backward_plan.cuh>

#include "diagonal_parts.hpp"

namespace gdn_cuda::scan {

struct DiagonalScanBackward : DiagonalSpec<DiagonalScanBackward, DiagonalScanBackwardConfig, DiagonalScanBackwardArgs> {
    static constexpr const char *name = "diagonal_scan_backward", *config_type = "DiagonalScanBackwardConfig",
                                *args_type = "DiagonalScanBackwardArgs";
    static constexpr const char* summary = "gradients of diagonal_scan: the recurrence in reverse";
};

}  // namespace gdn_cuda::scan
