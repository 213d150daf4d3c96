// Hides from the compiler how a value was computed, or that it is constant in a loop. The compiler would compute what depends
// on it before the loop and hold that in registers, or compute the value again at each use.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda {

__device__ __forceinline__ int opaque(int x) {
    asm volatile("" : "+r"(x));
    return x;
}
__device__ __forceinline__ unsigned opaque(unsigned x) {
    asm volatile("" : "+r"(x));
    return x;
}
__device__ __forceinline__ i64 opaque(i64 x) {
    asm volatile("" : "+l"(x));
    return x;
}
__device__ __forceinline__ char* opaque(char* x) {
    asm volatile("" : "+l"(x));
    return x;
}
__device__ __forceinline__ float opaque(float x) {
    asm volatile("" : "+f"(x));
    return x;
}
// What has been stored is loaded again rather than kept in registers.
__device__ __forceinline__ void forget_memory() {
    asm volatile("" ::: "memory");
}

}  // namespace gdn_cuda
