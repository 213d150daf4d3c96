// Named barriers for sm_80 and up. Inline PTX: CUTLASS's NamedBarrier is a breakpoint below sm_90 and has no reduction.
// Barrier 0 is __syncthreads().
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda {

// `threads`: a multiple of 32.
__device__ __forceinline__ void named_barrier_sync(int threads, int index) {
    asm volatile("bar.sync %0, %1;" ::"r"(index), "r"(threads) : "memory");
}
// The same with an index known at compile time. With the index in a register, ptxas reserves all 16 barriers for the block,
// and SMs of sm_86, sm_89 and sm_120 have barriers for one or two of these blocks.
template <int kIndex>
__device__ __forceinline__ void named_barrier_sync(int threads) {
    asm volatile("bar.sync %0, %1;" ::"n"(kIndex), "r"(threads) : "memory");
}
// Returns whether `found` is true for any of the threads.
__device__ __forceinline__ bool named_barrier_or(int threads, int index, bool found) {
    unsigned any;
    asm volatile(
        "{\n"
        ".reg .pred mine, any;\n"
        "setp.ne.u32 mine, %3, 0;\n"
        "bar.red.or.pred any, %1, %2, mine;\n"
        "selp.u32 %0, 1, 0, any;\n"
        "}"
        : "=r"(any)
        : "r"(index), "r"(threads), "r"(static_cast<unsigned>(found))
        : "memory");
    return any != 0;
}

}  // namespace gdn_cuda
