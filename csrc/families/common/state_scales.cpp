#include "state_scales.hpp"

#include <algorithm>
#include <gdn_cuda/kernels/recurrence/state_layout.cuh>

#include "../../operators/float64.hpp"

namespace gdn_cuda {

void check_state_scales(const Checks& check, const char* states_name, const View& states, const char* scales_name,
                        const View& scales, int leading, DType io, const char* columns) {
    using gdn::kCodeGroup;
    const bool coded = states.defined() && dtype_of(states) == DType::i8;
    if (!coded) {
        GDN_REQUIRE(check, !scales.defined(), scales_name,
                    states.defined() ? fmt::format("None, as {} is {}", states_name, dtype_name(states))
                                     : fmt::format("None, as {} is", states_name),
                    "a tensor");
        return;
    }
    GDN_REQUIRE(check, scales.defined(), scales_name, fmt::format("a tensor, as {} is int8", states_name), "None");
    GDN_REQUIRE(check, states.rank > leading && states.size(-1) % kCodeGroup == 0, states_name,
                fmt::format("{} that is a multiple of {}, as it is int8", columns, kCodeGroup), shape_text(states));
    GDN_REQUIRE(check,
                scales.rank == states.rank && std::equal(scales.sizes, scales.sizes + scales.rank - 1, states.sizes) &&
                    scales.size(-1) == states.size(-1) / kCodeGroup,
                scales_name,
                fmt::format("the shape of {} {} with {} / {}", states_name, shape_text(states), columns, kCodeGroup),
                shape_text(scales));
    dtype_beside(check, scales_name, scales, io, {DType::f32});
    check.device(scales_name, scales, states, states_name);
    for (const auto& [name, view] : {std::pair{states_name, states}, {scales_name, scales}})
        GDN_REQUIRE(check, view.contiguous_tail(view.rank - leading), name, "contiguous states, as they are int8",
                    stride_text(view));
    check.distinct(scales_name, scales);
}

}  // namespace gdn_cuda
