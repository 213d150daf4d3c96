// Time, for decisions that change no result.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda {

// The same on all multiprocessors; an H200 counts in steps of 32.
__device__ __forceinline__ unsigned long long nanoseconds() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

}  // namespace gdn_cuda
