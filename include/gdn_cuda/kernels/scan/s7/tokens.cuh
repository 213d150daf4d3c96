// Loads and stores of a thread's consecutive tokens of a row, whose last vector may be partial. Not shared with scan/diagonal:
// one function for both compiles to other code.
#pragma once

#include <gdn_cuda/kernels/common/vector.cuh>
#include <gdn_cuda/kernels/scan/s7/plan.cuh>

namespace gdn_cuda::scan {

// `left`: how many tokens the row has from there on; later ones are 0. `vectors`: the row is 16-byte aligned.
template <class T, int kTokens>
__device__ __forceinline__ Vector<T, kTokens, true> load_tokens(const T* from, int left, bool vectors) {
    Vector<T, kTokens, true> x;
    if (vectors && left >= kTokens) {
        x.load(from);
    } else {
#pragma unroll
        for (int i = 0; i < kTokens; ++i) x.items[i] = i < left ? from[i] : from_float<T>(0.f);
    }
    return x;
}
template <class T, int kTokens>
__device__ __forceinline__ void store_tokens(T* to, const float (&x)[kTokens], int left, bool vectors) {
    Vector<T, kTokens, true> y;
#pragma unroll
    for (int i = 0; i < kTokens; ++i) y.set(i, x[i]);
    if (vectors && left >= kTokens) {
        y.store(to);
    } else {
#pragma unroll
        for (int i = 0; i < kTokens; ++i)
            if (i < left) to[i] = y.items[i];
    }
}

}  // namespace gdn_cuda::scan
