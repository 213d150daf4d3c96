// The piece of a sequence that a block works on, and what the pieces before it do to a state.
#pragma once

#include <gdn_cuda/kernels/common/varlen.cuh>
#include <gdn_cuda/kernels/scan/discretization.cuh>
#include <gdn_cuda/kernels/scan/selective/inputs.cuh>

namespace gdn_cuda::scan {

// Pieces of a sequence of `length` tokens that are not empty, and at least one.
__device__ __forceinline__ int pieces_of(const Pieces& pieces, int length) {
    return pieces.count == 1 ? 1 : max(static_cast<int>(ceil_div(i64{length}, pieces.length)), 1);
}
__device__ __forceinline__ Span span_of_piece(const Pieces& pieces, const Span& sequence, int piece) {
    if (pieces.count == 1) return sequence;
    const i64 first = min(i64{piece} * pieces.length, i64{sequence.length});
    return {sequence.start + first, static_cast<int>(min(sequence.length - first, i64{pieces.length}))};
}

// A state behind a piece, from the one before it. Zero stays zero where the product is infinite.
template <class Number>
__device__ __forceinline__ Number through_piece(Number x, Number product, Number end) {
    bool is_zero;
    if constexpr (sizeof(Number) == sizeof(float))
        is_zero = x == 0.f;
    else
        is_zero = x.re == 0.f && x.im == 0.f;
    return is_zero ? end : plus_product(end, product, x);
}

}  // namespace gdn_cuda::scan
