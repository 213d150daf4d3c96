// scan/diagonal_scan on the host: its Spec.
#pragma once

#include <gdn_cuda/kernels/scan/diagonal/scan_plan.cuh>

#include "diagonal_parts.hpp"

namespace gdn_cuda::scan {

struct DiagonalScan : DiagonalSpec<DiagonalScan, DiagonalScanConfig, DiagonalScanArgs> {
    GDN_KERNEL(DiagonalScan, scan, diagonal_scan, DiagonalScanConfig, DiagonalScanArgs,
               "the recurrence of a diagonal system, threads along time: S5, LRU");
};

}  // namespace gdn_cuda::scan
