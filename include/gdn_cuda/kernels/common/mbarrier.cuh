// mbarriers (sm_90): CUTLASS's, laid over words of a shared-memory plan.
#pragma once

#include <gdn_cuda/kernels/common/cutlass.cuh>
#include <gdn_cuda/kernels/common/shared.cuh>

namespace gdn_cuda {

struct Barrier : cutlass::arch::ClusterTransactionBarrier {
    // CUTLASS's gives try_wait a time limit, for which ptxas makes a second loop with NANOSLEEP.
    __device__ __forceinline__ void wait(unsigned parity) const {
        while (!try_wait(parity)) {
        }
    }
    // Before it is initialised anew; nobody is at it.
    __device__ __forceinline__ void invalidate() const { ClusterBarrier::invalidate(&barrier_); }
};

__device__ __forceinline__ Barrier& barrier(unsigned long long& word) {
    return reinterpret_cast<Barrier&>(word);
}

// What other blocks stored to global memory and this thread has acquired, for TMA to see. CUTLASS has the fence for shared
// memory only (fence_view_async_shared).
__device__ __forceinline__ void fence_proxy_async_global() {
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

}  // namespace gdn_cuda
