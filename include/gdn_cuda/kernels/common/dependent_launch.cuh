// Programmatic dependent launch (sm_90): lets the next grid start; waits for the grid before to end. Inline PTX: CUTLASS's are
// empty unless the whole build defines CUTLASS_ENABLE_GDC_FOR_SM90, and come with its GEMM dispatch policies.
//
// A kernel whose Spec has `starts_early` waits in every thread before it touches memory, so that a grid which has ended follows
// all before it. A chain of such launches hides the start of each behind the one before. The next grid starts as all blocks
// have asked for it or ended: where the loads of this one are what counts, late, as its blocks spread unevenly over what SMs
// have left. (fused_decode, B = 4, in fp32: asked for at its start 9.5 us, at its end 8.7, never 9.4; H100.)
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
