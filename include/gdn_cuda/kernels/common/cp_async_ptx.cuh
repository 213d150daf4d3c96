// cp.async (sm_80) in inline PTX, for kernels without tensor cores. In gdn/decode and gdn/verify a thread reads the data that
// it copied right after a wait, without a barrier, and gdn/decode then overwrites it. That requires "memory" clobbers, which
// CUTLASS's wrappers lack. CUTLASS's headers would also double the compile time of these kernels.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda {

// `shared` is a shared-window address.
__device__ __forceinline__ void cp_async_16(unsigned shared, const void* global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}
__device__ __forceinline__ void cp_async_16(void* shared, const void* global) {
    cp_async_16(static_cast<unsigned>(__cvta_generic_to_shared(shared)), global);
}

// kBytes: 4, 8 or 16.
template <int kBytes>
__device__ __forceinline__ void cp_async(void* shared, const void* global) {
    if constexpr (kBytes == 16)
        cp_async_16(shared, global);
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(shared))),
                     "l"(global), "n"(kBytes)
                     : "memory");
}

// If !exists, writes zeros and does not read `global`.
__device__ __forceinline__ void cp_async_16_zfill(unsigned shared, const void* global, bool exists) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(exists ? 16 : 0) : "memory");
}

__device__ __forceinline__ void cp_async_fence() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most kPending of this thread's groups are in flight.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace gdn_cuda
