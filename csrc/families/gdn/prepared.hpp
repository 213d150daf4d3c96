// The part common to fused_decode, recurrent_forward and chunked_forward: a checked call, described for the kernels.
#pragma once

#include <gdn_cuda/kernels/gdn/recurrent_plan.cuh>
#include <initializer_list>

#include "checks.hpp"

namespace gdn_cuda::gdn {

// gdn/recurrent can run every call, so its arguments describe one; other kernels derive theirs from them.
struct Prepared {
    Sequences sequences;
    View output{};
    DType state_type = DType::f32;
    bool aligned = true;
    RecurrentArgs args{};
};

Prepared prepare(const Checks& check, const Sequences& sequences, const Tensor& out, std::optional<double> scale, bool qk_norm);
// States (slots, Hv, dv, dk) or (slots, steps, Hv, dv, dk), each state contiguous.
RecurrentStates check_states(const Checks& check, Prepared& prepared, const char* argument, const View& states, int rank);
Tensor new_states(const Tensor& like, std::initializer_list<int64_t> leading, const Sequences& sequences, DType type);

// Launches gdn/decode, gdn/verify or gdn/recurrent.
void run_by_token(const Prepared& prepared, const char* function);

}  // namespace gdn_cuda::gdn
