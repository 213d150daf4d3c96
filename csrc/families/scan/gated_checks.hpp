// Checks that the scans of gated models share.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <vector>

#include "../../operators/packed.hpp"
#include "../../operators/tensor.hpp"

namespace gdn_cuda::scan {

// float32, bfloat16 or float16, and float64 where no kernel computes.
inline DType check_number(const Checks& check, const char* argument, const View& view) {
    if (view.is_cuda() || explaining()) return check.dtype(argument, view, {DType::f32, DType::bf16, DType::f16});
    return check.dtype(argument, view, {DType::f32, DType::bf16, DType::f16, DType::f64});
}

// Whether a (B, D, L) tensor is the transposed view of a (B, L, D) one: channels, not tokens, are neighbours in memory. One
// token in a contiguous tensor counts as such, too.
inline bool channels_are_last(const View& view) {
    return view.stride(1) == 1 && !(view.size(2) > 1 && view.stride(2) == 1);
}
inline Tensor empty_in_layout(const Tensor& like, const View& view) {
    const int64_t B = view.size(0), D = view.size(1), L = view.size(2);
    if (!channels_are_last(view)) return torch::stable::new_empty(like, std::vector<int64_t>{B, D, L});
    return torch::stable::transpose(torch::stable::new_empty(like, std::vector<int64_t>{B, L, D}), 1, 2);
}

}  // namespace gdn_cuda::scan
