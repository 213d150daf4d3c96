// Clusters of blocks (sm_90): stores into each other's shared memory, which the barrier there counts as bytes that came.
#pragma once

#include <gdn_cuda/kernels/common/mbarrier.cuh>

namespace gdn_cuda {

struct alignas(16) Piece {
    unsigned long long low, high;
};

__device__ __forceinline__ unsigned cluster_rank() {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// All threads of all blocks: what was stored before is seen after.
__device__ __forceinline__ void meet_cluster() {
    asm volatile(
        "barrier.cluster.arrive.release.aligned;\n"
        "barrier.cluster.wait.acquire.aligned;" ::
            : "memory");
}

// Where what is at this address of shared memory is in block `rank` of the cluster; what is behind it is behind it there.
__device__ __forceinline__ unsigned address_in(const void* shared, unsigned rank) {
    unsigned there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(shared)), "r"(rank));
    return there;
}
// To addresses in one block: a place, and the barrier that counts.
__device__ __forceinline__ void send(const Piece& piece, unsigned into, unsigned barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b64 [%0], {%2, %3}, [%1];" ::"r"(into), "r"(barrier),
                 "l"(piece.low), "l"(piece.high)
                 : "memory");
}

}  // namespace gdn_cuda
