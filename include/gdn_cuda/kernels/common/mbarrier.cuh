// mbarriers (sm_90): CUTLASS's, placed on words of a shared-memory plan. Its waits, arrivals, proxy fences and named barriers
// have no "memory" clobbers. Plain accesses, to shared memory and to a summary's L in global memory, stay in place only because
// the compiler moves no memory access across volatile asm, as in CUTLASS's own kernels. Where that code changes, compare the
// machine code with a build that has clobbers.
#pragma once

#include <gdn_cuda/kernels/common/cutlass_sm90.cuh>

namespace gdn_cuda {

struct Barrier : cutlass::arch::ClusterTransactionBarrier {
    // Call before reinitialisation, while no thread uses the barrier.
    __device__ __forceinline__ void invalidate() const { ClusterBarrier::invalidate(&barrier_); }
};

__device__ __forceinline__ Barrier& barrier(unsigned long long& word) {
    return reinterpret_cast<Barrier&>(word);
}

// Makes global stores of other blocks that this thread has acquired visible to TMA. Inline PTX: CUTLASS's
// fence_view_async_shared covers shared memory only.
__device__ __forceinline__ void fence_proxy_async_global() {
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

}  // namespace gdn_cuda
