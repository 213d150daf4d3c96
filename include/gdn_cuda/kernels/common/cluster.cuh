// Thread block clusters (sm_90): stores into another block's shared memory, counted in bytes by an mbarrier there.
#pragma once

#include <gdn_cuda/kernels/common/mbarrier.cuh>

namespace gdn_cuda {

struct alignas(16) Vector16 {
    unsigned long long low, high;
};

// Destination and mbarrier must be in the same block. Inline PTX: CUTLASS has only the 4-byte form (store_shared_remote).
__device__ __forceinline__ void st_async(const Vector16& vector, unsigned into, unsigned barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b64 [%0], {%2, %3}, [%1];" ::"r"(into), "r"(barrier),
                 "l"(vector.low), "l"(vector.high)
                 : "memory");
}

}  // namespace gdn_cuda
