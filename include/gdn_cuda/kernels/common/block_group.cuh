// Blocks that reach each other's shared memory: a thread block cluster (sm_90), or one block alone. Inline PTX: CUTLASS has no
// plain store to another block.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda {

constexpr bool kHasClusters = kCompiledCapability >= 90 || kCompiledCapability == 0;  // 0: compiled for a CPU

// `size` neighbours in x: group `index` of the grid. Every thread of every block arrives and then waits, in turn.
struct BlockGroup {
    int size, index, rank;

    __device__ __forceinline__ explicit BlockGroup(int size)
        : size(kHasClusters ? size : 1), index(static_cast<int>(blockIdx.x)), rank(0) {
        if constexpr (kHasClusters)  // special registers in place of a division
            asm("mov.u32 %0, %%clusterid.x; mov.u32 %1, %%cluster_ctarank;" : "=r"(index), "=r"(rank));
    }

    __device__ __forceinline__ void arrive() const {
        if constexpr (kHasClusters)
            if (size > 1) asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
    }
    // Until all have arrived. Behind it each sees what others stored before they arrived.
    __device__ __forceinline__ void wait() const {
        if constexpr (kHasClusters)
            if (size > 1) asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
    }
    // Into the variable `to` of the block `rank_of_block`, which must have begun and not ended.
    __device__ __forceinline__ void store(double& to, int rank_of_block, double x) const {
        if (!kHasClusters || rank_of_block == rank) {
            to = x;
            return;
        }
        if constexpr (kHasClusters) {
            unsigned address;
            asm("mapa.shared::cluster.u32 %0, %1, %2;"
                : "=r"(address)
                : "r"(static_cast<unsigned>(__cvta_generic_to_shared(&to))), "r"(rank_of_block));
            asm volatile("st.shared::cluster.f64 [%0], %1;" ::"r"(address), "d"(x) : "memory");
        }
    }
};

}  // namespace gdn_cuda
