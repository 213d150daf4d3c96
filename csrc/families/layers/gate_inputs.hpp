// Inputs of a layer's gates: projections and parameters.
#pragma once

#include <algorithm>
#include <utility>

#include "../../operators/float64.hpp"

namespace gdn_cuda::layers {

// A_log, dt_bias: (Hv,). a, b: (..., Hv), with the same shape and dtype.
struct GateInputs {
    View A_log, dt_bias, a, b;
};

// Checks all but the shape of a. Returns the dtype of a.
inline DType check_gate_inputs(const Checks& check, const GateInputs& x) {
    const auto& [A_log, dt_bias, a, b] = x;
    GDN_REQUIRE(check, b.rank == a.rank && std::equal(b.sizes, b.sizes + b.rank, a.sizes), "b",
                "the shape of a " + shape_text(a), shape_text(b));
    const DType io = check.number("a", a);
    check.dtype("b", b, {io});
    check.device("b", b, a, "a");
    for (const auto& [argument, view] : {std::pair{"A_log", &A_log}, std::pair{"dt_bias", &dt_bias}}) {
        check.shape(argument, *view, {a.size(-1)}, "(Hv,)");
        dtype_beside(check, argument, *view, io);
        check.device(argument, *view, a, "a");
        check.last_contiguous(argument, *view);
    }
    return io;
}

}  // namespace gdn_cuda::layers
