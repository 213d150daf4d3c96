// States of int8 codes: the scales beside them (include/gdn_cuda/kernels/recurrence/state_codes.cuh).
#pragma once

#include "../../operators/tensor.hpp"

namespace gdn_cuda {

// Checks that int8 states (slots, …, dk) have scales (slots, …, dk / 32), fp32 (or fp64 beside rows `io` of fp64) and on their
// device, with memory of its own for each, and that other states have none. Each state, and its scales, are contiguous;
// `leading`: the dimensions before that, of any strides, 1 of a pool and 2 of states after every token.
void check_state_scales(const Checks& check, const char* states_name, const View& states, const char* scales_name,
                        const View& scales, int leading = 1, DType io = DType::f32, const char* columns = "dk");

}  // namespace gdn_cuda
