// The 256 threads that prepare a chunk, as gdn/kda_prepare's code sees them: a block of gdn/kda_prepare, or half of a block of
// gdn/kda_ahead, which takes one record after another (kda/ahead_preparer.cuh).
#pragma once

#include <gdn_cuda/kernels/common/tma.cuh>
#include <gdn_cuda/kernels/gdn/kda/prepare_plan.cuh>
#include <gdn_cuda/kernels/hopper/warpgroup.cuh>

namespace gdn_cuda::gdn {

// One of 256 threads.
struct KdaBlockThread {
    // Whether it takes one record after another. Then what one leaves unwritten is cleared: ptxas would keep it for the next.
    static constexpr bool kTakesMany = false;

    __device__ __forceinline__ static unsigned index() { return threadIdx.x; }
};
// A block that prepares one chunk.
struct KdaPreparingBlock {
    using Thread = KdaBlockThread;

    __device__ __forceinline__ static Thread thread() { return {}; }
    __device__ __forceinline__ static void sync() { __syncthreads(); }
    // For its 256 threads, beside sync's.
    __device__ __forceinline__ static int other_barrier() { return 1; }

    // By the thread that loads keys and queries.
    __device__ __forceinline__ static void start_barrier(Barrier& tiles_full) {
        tiles_full.init(1);
        cutlass::arch::fence_barrier_init();
    }
    // While loads are in flight; what it returns goes to `store_next` once they have arrived.
    __device__ __forceinline__ static unsigned take_next() { return 0; }
    __device__ __forceinline__ static void store_next(unsigned) {}
    // Where the record goes; by the thread that copies it.
    __device__ __forceinline__ static KdaRecord& place_of(KdaRecord& record) { return record; }
    __device__ __forceinline__ static void set_flags(unsigned& place, unsigned flags) { place = flags; }
    // The record has been copied out of shared memory; `reloads`: keys were loaded a second time.
    __device__ __forceinline__ static void finish(Barrier&, bool) {}
};

}  // namespace gdn_cuda::gdn
