// convert_states: states between dtypes, and between slots of pools, by gdn/convert_rows or gdn/move_states.
#include <gdn_cuda/gdn.hpp>
#include <limits>

#include "../../operators/operator.hpp"
#include "../common/state_scales.hpp"
#include "convert_rows.hpp"
#include "move_states.hpp"
#include "prepared.hpp"

namespace gdn_cuda::gdn {
namespace {

struct PreparedConvert {
    View states;
    int64_t rows = 0;
    DType to = DType::f32;
    MoveStatesArgs args{};
};

RecurrentStates described(const View& states, const View& scales) {
    return {.data = states.data,
            .slot = states.stride(0),
            .head = states.stride(1),
            .row = states.stride(2),
            .column = states.stride(3),
            .type = *dtype_of(states),
            .scales = scales.defined() ? static_cast<float*>(scales.data) : nullptr,
            .scales_slot = scales.defined() ? scales.stride(0) : 0};
}

// The dtype that states become.
DType check_wanted(const Checks& check, const std::optional<ScalarType>& wanted, const View& states) {
    const bool on_cpu = !states.is_cuda() && !explaining();
    if (wanted) {
        if (*wanted == ScalarType::Float) return DType::f32;
        if (*wanted == ScalarType::BFloat16) return DType::bf16;
        if (*wanted == ScalarType::Half) return DType::f16;
        if (*wanted == ScalarType::Char) return DType::i8;
        if (*wanted == ScalarType::Double && on_cpu) return DType::f64;
    }
    check.fail("dtype", fmt::format("float32, bfloat16, float16 or int8{}", on_cpu ? ", or float64 on CPU tensors" : ""),
               wanted ? dtype_name(*wanted) : "None");
}

PreparedConvert prepare_convert(const ConvertStates& x) {
    const Checks check{x.name};
    const View states(x.states), scales = view_of(x.scales), out = view_of(x.out), out_scales = view_of(x.out_scales);
    const View from = view_of(x.state_indices), to = view_of(x.write_indices);
    PreparedConvert prepared{.states = states};
    MoveStatesArgs& args = prepared.args;
    check.rank("states", states, 4, "(slots, Hv, dv, dk)");
    dtype_or_f64(check, "states", states, {DType::f32, DType::bf16, DType::f16, DType::i8});
    prepared.to = check_wanted(check, x.dtype, states);
    const DType io = prepared.to == DType::f64 || dtype_of(states) == DType::f64 ? DType::f64 : DType::f32;
    check_state_scales(check, "states", states, "scales", scales, 1, io);
    GDN_REQUIRE(check, prepared.to != DType::i8 || states.size(3) % kCodeGroup == 0, "states",
                fmt::format("dk that is a multiple of {} for int8", kCodeGroup), shape_text(states));
    prepared.rows = from.defined() ? from.size(0) : to.defined() ? to.size(0) : states.size(0);
    const Batch batch{.sequences = prepared.rows, .tokens = 0, .packed = false, .like = states, .like_name = "states"};
    if (from.defined()) {
        check_per_sequence(check, "state_indices", from, batch);
    } else {
        GDN_REQUIRE(check, states.size(0) == prepared.rows, "states",
                    fmt::format("{} of them, one for each of write_indices", prepared.rows), shape_text(states));
    }
    if (to.defined()) {
        GDN_REQUIRE(check, out.defined(), "write_indices", "None without out", "a tensor");
        check_per_sequence(check, "write_indices", to, batch);
    }
    if (out.defined()) {
        check.rank("out", out, 4, "(slots, Hv, dv, dk)");
        const int64_t rows = to.defined() ? out.size(0) : prepared.rows;
        check.shape("out", out, {rows, states.size(1), states.size(2), states.size(3)}, "(slots, Hv, dv, dk)");
        check.dtype("out", out, {prepared.to});
        check.device("out", out, states, "states");
        check.distinct("out", out);
    }
    check_state_scales(check, "out", out, "out_scales", out_scales, 1, io);
    check.apart({{"out", out}, {"out_scales", out_scales}},
                {{"states", states}, {"scales", scales}, {"state_indices", from}, {"write_indices", to}});
    GdnCall& call = args.call;
    call.heads = check.count("states", "heads", states.size(1), kMaxGridYZ);
    call.dv = check.count("states", "rows", states.size(2));
    call.dk = check.count("states", "columns", states.size(3));
    call.slots = tagged(from);
    call.slots_sequence = 1;
    call.slot_count = check.count("states", "slots", states.size(0));
    call.null_slot = check_null_slot(check, x.null_slot);
    call.last_slots = tagged(to);
    call.last_slot_count = check.count("out", "slots", out.defined() ? out.size(0) : prepared.rows);
    args.rows = prepared.rows;
    args.fills = !out.defined();
    args.from = described(states, scales);
    if (out.defined()) args.to = described(out, out_scales);
    check.grid("states", {ceil_div(call.dv, MoveStatesConfig::kTile) * ceil_div(call.dk, MoveStatesConfig::kTile), 1, 1});
    return prepared;
}

ScalarType scalar_type_of(DType type) {
    return type == DType::bf16  ? ScalarType::BFloat16
           : type == DType::f16 ? ScalarType::Half
           : type == DType::i8  ? ScalarType::Char
                                : ScalarType::Float;
}

std::tuple<Tensor, Tensor> run_convert(const ConvertStates& x) {
    PreparedConvert prepared = prepare_convert(x);
    const View& states = prepared.states;
    const int64_t rows = x.out ? 0 : prepared.rows, heads = states.size(1), dv = states.size(2), dk = states.size(3);
    const bool coded = prepared.to == DType::i8;
    const Tensor made = new_tensor(x.states, {rows, heads, dv, dk}, scalar_type_of(prepared.to));
    const Tensor scales = new_tensor(x.states, {coded ? rows : 0, heads, dv, ceil_div(dk, kCodeGroup)}, ScalarType::Float);
    if (!x.out) {
        prepared.args.to = {.data = memory_of(made),
                            .slot = heads * dv * dk,
                            .head = dv * dk,
                            .row = dk,
                            .column = 1,
                            .type = prepared.to,
                            .scales = coded ? static_cast<float*>(memory_of(scales)) : nullptr,
                            .scales_slot = heads * dv * (dk / kCodeGroup)};
    }
    const DeviceScope scope(states.device_index);
    const Target target = target_of(x.name, states);
    if (ConvertRows::fits(prepared.args))
        ConvertRows::run(prepared.args, target);
    else
        MoveStates::run(StatesMove::convert, prepared.args, target);
    return {made, scales};
}

GDN_REGISTER(ConvertStates, prepare_convert, run_convert)

}  // namespace
}  // namespace gdn_cuda::gdn

namespace gdn_cuda {

std::tuple<Tensor, Tensor> convert_states(const ConvertStates& x) {
    require_given(x.name, x);
    auto [states, scales] = call<ConvertStates, gdn::run_convert>(x);
    return {x.out ? *x.out : states, x.out_scales ? *x.out_scales : scales};
}

}  // namespace gdn_cuda
