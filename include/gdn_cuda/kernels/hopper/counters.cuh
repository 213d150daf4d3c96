// Counters between blocks where TMA reads or writes what they announce: `wait_for_count` is followed by
// `fence_proxy_async_global` (common/mbarrier.cuh).
#pragma once

#include <gdn_cuda/kernels/common/counters.cuh>

namespace gdn_cuda {

// Waits until the thread's bulk stores are visible in global memory. Inline PTX: CUTLASS waits only for their reads.
__device__ __forceinline__ void wait_for_bulk_stores() {
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(0) : "memory");
}

}  // namespace gdn_cuda
