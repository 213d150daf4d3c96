// cp.async (sm_80): global to shared memory, bypassing registers. Inline PTX: CUTLASS's (cute/arch/copy_sm80.hpp) always ask L2
// for 128 bytes, and wait for all groups by another instruction (wait_all).
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda {

__device__ __forceinline__ void cp_async_16(void* shared, const void* global) {
    const auto to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
}

// If !exists, writes zeros and does not read `global`; `shared` is a shared-window address.
__device__ __forceinline__ void cp_async_16_zfill(unsigned shared, const void* global, bool exists) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(exists ? 16 : 0) : "memory");
}

__device__ __forceinline__ void cp_async_4(unsigned shared, const void* global) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(global) : "memory");
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
