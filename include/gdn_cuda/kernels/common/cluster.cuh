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

// To where `into` and `barrier` are in the shared memory of block `rank` of the cluster.
__device__ __forceinline__ void send(const Piece& piece, const void* into, const Barrier& barrier, unsigned rank) {
    asm volatile(
        "{\n"
        ".reg .b32 into, barrier;\n"
        "mapa.shared::cluster.u32 into, %0, %4;\n"
        "mapa.shared::cluster.u32 barrier, %1, %4;\n"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b64 [into], {%2, %3}, [barrier];\n"
        "}" ::"r"(shared_address(into)),
        "r"(shared_address(&barrier)), "l"(piece.low), "l"(piece.high), "r"(rank)
        : "memory");
}

}  // namespace gdn_cuda
