// Counters in global memory between blocks: what a block wrote before `red_release` is visible after `wait_for_count`.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda {

// Inline PTX: CUTLASS's (cutlass/barrier.h) use a fence and a relaxed reduction, one instruction more.
__device__ __forceinline__ void red_release(unsigned* count, unsigned more = 1) {
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(count), "r"(more) : "memory");
}
__device__ __forceinline__ unsigned load_acquire(const unsigned* count) {
    unsigned now;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(count) : "memory");
    return now;
}
__device__ __forceinline__ unsigned wait_for_count(const unsigned* count, unsigned wanted) {
    unsigned now;
    do now = load_acquire(count);
    while (now < wanted);
    return now;
}

}  // namespace gdn_cuda
