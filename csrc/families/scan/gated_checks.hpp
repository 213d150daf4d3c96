// Checks that the scans of gated models share.
#pragma once

#include "../../operators/packed.hpp"
#include "../../operators/tensor.hpp"

namespace gdn_cuda::scan {

// float32, bfloat16 or float16, and float64 where no kernel computes.
inline DType check_number(const Checks& check, const char* argument, const View& view) {
    if (view.is_cuda() || explaining()) return check.dtype(argument, view, {DType::f32, DType::bf16, DType::f16});
    return check.dtype(argument, view, {DType::f32, DType::bf16, DType::f16, DType::f64});
}

}  // namespace gdn_cuda::scan
