// Blocks that reach each other's shared memory: a thread block cluster (sm_90), or one block alone. Inline PTX: CUTLASS has no
// plain store to another block.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda {

// kBlocks neighbours in x.
template <int kBlocks>
struct BlockGroup {
    int rank = static_cast<int>(blockIdx.x) % kBlocks;

    // All threads of all blocks. Behind it each sees what others stored before it.
    __device__ __forceinline__ void sync() const {
        if constexpr (kBlocks == 1)
            __syncthreads();
        else
            asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
    }
    // Into the variable `to` of the block `rank_of_block`, which must have begun and not ended.
    template <class T>
    __device__ __forceinline__ void store(T& to, int rank_of_block, T x) const {
        static_assert(sizeof(T) == 2 || sizeof(T) == 4);
        if constexpr (kBlocks == 1) {
            to = x;
        } else {
            unsigned address;
            asm("mapa.shared::cluster.u32 %0, %1, %2;"
                : "=r"(address)
                : "r"(static_cast<unsigned>(__cvta_generic_to_shared(&to))), "r"(rank_of_block));
            if constexpr (sizeof(T) == 2)
                asm volatile("st.shared::cluster.u16 [%0], %1;" ::"r"(address), "h"(reinterpret_cast<const unsigned short&>(x))
                             : "memory");
            else
                asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(address), "r"(reinterpret_cast<const unsigned&>(x))
                             : "memory");
        }
    }
};

}  // namespace gdn_cuda
