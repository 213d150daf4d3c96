// Inputs of a layer's gates: projections and parameters.
#pragma once

#include <algorithm>

#include "../../operators/float64.hpp"

namespace gdn_cuda::layers {

// A_log, dt_bias: (Hv,). a, b: (..., Hv), with the same shape and dtype.
struct GateInputs {
    View A_log, dt_bias, a, b;
};

// A parameter with a value for each head.
inline void check_head_parameter(const Checks& check, const char* argument, const View& view, int64_t heads, DType io,
                                 const View& a) {
    check.shape(argument, view, {heads}, "(Hv,)");
    dtype_beside(check, argument, view, io);
    check.device(argument, view, a, "a");
    check.last_contiguous(argument, view);
}

// Checks all but the shape of a. Returns the dtype of a.
inline DType check_gate_inputs(const Checks& check, const GateInputs& x) {
    const auto& [A_log, dt_bias, a, b] = x;
    GDN_REQUIRE(check, b.rank == a.rank && std::equal(b.sizes, b.sizes + b.rank, a.sizes), "b",
                "the shape of a " + shape_text(a), shape_text(b));
    const DType io = check.number("a", a);
    check.dtype("b", b, {io});
    check.device("b", b, a, "a");
    check_head_parameter(check, "A_log", A_log, a.size(-1), io, a);
    check_head_parameter(check, "dt_bias", dt_bias, a.size(-1), io, a);
    return io;
}

}  // namespace gdn_cuda::layers
