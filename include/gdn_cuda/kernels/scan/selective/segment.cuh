// The segment of a sequence that a block works on, and the map of a segment applied to a state.
#pragma once

#include <gdn_cuda/kernels/common/varlen.cuh>
#include <gdn_cuda/kernels/scan/discretization.cuh>
#include <gdn_cuda/kernels/scan/selective/inputs.cuh>

namespace gdn_cuda::scan {

// How many segments of a sequence of `length` tokens are not empty; at least 1.
__device__ __forceinline__ int segment_count(const Segments& segments, int length) {
    return segments.count == 1 ? 1 : max(static_cast<int>(ceil_div(i64{length}, segments.length)), 1);
}
__device__ __forceinline__ Span segment_span(const Segments& segments, const Span& sequence, int segment) {
    if (segments.count == 1) return sequence;
    const i64 first = min(i64{segment} * segments.length, i64{sequence.length});
    return {sequence.start + first, static_cast<int>(min(sequence.length - first, i64{segments.length}))};
}

// A state that decays by this no longer matters for a summary; as chunked/chunk.cuh's.
inline constexpr float kNegligibleDecayLog2 = -80.f, kNegligibleDecay = 0x1p-80f;

// NaN is never negligible.
__device__ __forceinline__ bool is_negligible(float decay) {
    return fabsf(decay) < kNegligibleDecay;
}
__device__ __forceinline__ bool is_negligible(ComplexNumber<float> decay) {
    return is_negligible(decay.re) && is_negligible(decay.im);
}

// The state after a segment, from the state before it. Zero times an infinite product is 0 here.
template <class Number>
__device__ __forceinline__ Number after_segment(Number x, Number product, Number end) {
    bool is_zero;
    if constexpr (sizeof(Number) == sizeof(float))
        is_zero = x == 0.f;
    else
        is_zero = x.re == 0.f && x.im == 0.f;
    return is_zero ? end : plus_product(end, product, x);
}

}  // namespace gdn_cuda::scan
