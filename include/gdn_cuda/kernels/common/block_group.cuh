// A thread block cluster (sm_90), or a single block on older GPUs. Inline PTX: CUTLASS has no plain store to another block's
// shared memory.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda {

constexpr bool kHasClusters = kCompiledCapability >= 90 || kCompiledCapability == 0;  // 0: compiled for a CPU

// Group `index` of the grid: `size` adjacent blocks in x. Every thread of every block calls arrive() and wait() alternately.
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
    // Blocks until all threads have arrived; stores made before their arrivals are visible afterwards.
    __device__ __forceinline__ void wait() const {
        if constexpr (kHasClusters)
            if (size > 1) asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
    }
    // Stores x in the variable `to` of block `rank_of_block`, which must be running.
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
