// cp.async (sm_80) for kernels that use tensor cores; the others use cp_async_ptx.cuh. Waits, CUTLASS's, are no barriers for
// the compiler: between them and plain accesses to the same shared memory there must be a __syncthreads or __syncwarp. Copies
// are inline PTX: CUTLASS's ask L2 for 128 bytes.
#pragma once

#include <gdn_cuda/kernels/common/cutlass_sm80.cuh>
#include <gdn_cuda/kernels/common/shared.cuh>

namespace gdn_cuda {

using cute::cp_async_fence;
using cute::cp_async_wait;

// If !exists, writes zeros and does not read `global`; `shared` is a shared-window address.
__device__ __forceinline__ void cp_async_16_zfill(unsigned shared, const void* global, bool exists) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(exists ? 16 : 0) : "memory");
}

__device__ __forceinline__ void cp_async_4(unsigned shared, const void* global) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(global) : "memory");
}

}  // namespace gdn_cuda
