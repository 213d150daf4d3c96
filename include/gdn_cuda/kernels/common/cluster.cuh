// Clusters of blocks (sm_90): stores into each other's shared memory, which an mbarrier there counts as bytes that came.
#pragma once

#include <gdn_cuda/kernels/common/mbarrier.cuh>

namespace gdn_cuda {

struct alignas(16) Piece {
    unsigned long long low, high;
};

// To addresses in one block: a place, and the mbarrier that counts its bytes. CUTLASS has it for 4 bytes (store_shared_remote).
__device__ __forceinline__ void st_async(const Piece& piece, unsigned into, unsigned barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b64 [%0], {%2, %3}, [%1];" ::"r"(into), "r"(barrier),
                 "l"(piece.low), "l"(piece.high)
                 : "memory");
}

}  // namespace gdn_cuda
