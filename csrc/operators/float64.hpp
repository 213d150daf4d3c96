// float64 on CPU tensors: their references compute in it, and kernels that take no float64 refuse it by name.
#pragma once

#include <initializer_list>

#include "tensor.hpp"

namespace gdn_cuda {

// One of `allowed`, or float64 where no kernel computes: on CPU tensors, and on meta tensors of a trace on the CPU.
DType dtype_or_f64(const Checks& check, const char* argument, const View& view, std::initializer_list<DType> allowed);

// For a tensor beside rows of dtype `io`: one of `allowed`, or float64 beside float64 rows.
DType dtype_beside(const Checks& check, const char* argument, const View& view, DType io,
                   std::initializer_list<DType> allowed = {DType::f32, DType::bf16, DType::f16});

}  // namespace gdn_cuda
