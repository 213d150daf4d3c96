// Programmatic dependent launch (sm_90): lets the next grid start early; waits until the previous grid has ended. Inline PTX:
// CUTLASS's wrappers are empty unless the whole build defines CUTLASS_ENABLE_GDC_FOR_SM90, and include its GEMM dispatch
// policies.
//
// In a kernel whose Spec has `starts_early`, every thread waits before it accesses global memory. So when a
// grid has ended, all earlier grids have ended too, and in a chain of these launches each start overlaps with the previous end.
//
// The next grid starts when every block has called launch_dependent_grids() or ended. Kernels bound by the latency of their
// loads call it late or not at all: blocks of the next grid that are resident early are spread unevenly over the SMs
// (docs/benchmarks/decode.md).
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda {

constexpr bool kHasDependentLaunch = kCompiledCapability >= kFirstWithDependentLaunch || kCompiledCapability == 0;  // 0: a CPU

__device__ __forceinline__ void launch_dependent_grids() {
    if constexpr (kHasDependentLaunch) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ __forceinline__ void wait_on_dependent_grids() {
    if constexpr (kHasDependentLaunch) asm volatile("griddepcontrol.wait;" ::: "memory");
}

}  // namespace gdn_cuda
