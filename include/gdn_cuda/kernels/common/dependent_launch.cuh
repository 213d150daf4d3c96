// Programmatic dependent launch (sm_90): lets the next grid start; waits for the grid before to end. Inline PTX: CUTLASS's are
// empty unless the whole build defines CUTLASS_ENABLE_GDC_FOR_SM90, and come with its GEMM dispatch policies.
#pragma once

namespace gdn_cuda {

__device__ __forceinline__ void launch_dependent_grids() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ __forceinline__ void wait_on_dependent_grids() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

}  // namespace gdn_cuda
