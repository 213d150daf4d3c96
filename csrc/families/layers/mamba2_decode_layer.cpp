// mamba2_decode_layer: a Mamba-2 layer's step between its projections, with states in slots of two pools.
#include "mamba2_decode_layer.hpp"

#include <gdn_cuda/layers.hpp>
#include <vector>

#include "../../operators/operator.hpp"
#include "../../operators/state_slots.hpp"
#include "../common/state_scales.hpp"
#include "near_stride.hpp"

namespace gdn_cuda::layers {
namespace {

struct PreparedMamba2 {
    View xBC;
    Mamba2LayerProblem problem{};
    Mamba2LayerArgs args{};
};

// A call's arguments while they are checked.
struct Mamba2Checks : Checks {
    View xBC;
    int64_t sequences, heads, dim, states, groups;

    int64_t rows() const { return heads * dim; }
    int64_t channels() const { return rows() + 2 * groups * states; }

    void number(const char* argument, const View& view) const {
        dtype(argument, view, {DType::f32, DType::bf16, DType::f16});
        device(argument, view, xBC, "xBC");
    }
    Mamba2LayerArgs::Channels by_channel(const char* argument, const View& view, int64_t count, const char* layout) const {
        if (!view.defined()) return {};
        shape(argument, view, {sequences, count}, layout);
        number(argument, view);
        return {tagged(view), view.stride(0), view.stride(1)};
    }
    Mamba2LayerArgs::Constants per_head(const char* argument, const View& view) const {
        if (!view.defined()) return {};
        shape(argument, view, {heads}, "(H,)");
        number(argument, view);
        return {tagged(view), view.stride(0), 0};
    }
    Mamba2LayerArgs::Constants per_head_or_row(const char* argument, const View& view) const {
        if (!view.defined() || view.rank != 2) return per_head(argument, view);
        shape(argument, view, {heads, dim}, "(H,) or (H, P)");
        number(argument, view);
        return {tagged(view), view.stride(0), view.stride(1)};
    }
};

Mamba2Checks check_sizes(const Mamba2DecodeLayer& x, const View& xBC, const View& pool) {
    const Checks check{x.name};
    check.rank("xBC", xBC, 2, "(B, C)");
    check.rank("state_pool", pool, 4, "(slots, H, P, N)");
    const int64_t heads = pool.size(1), states = pool.size(3);
    GDN_REQUIRE(check, states == 64 || states == 128 || states == 256, "state_pool", "64, 128 or 256 states a channel",
                shape_text(pool));
    GDN_REQUIRE(check, heads >= 1 && pool.size(2) >= 1, "state_pool", "a head and a channel or more", shape_text(pool));
    GDN_REQUIRE(check, x.groups >= 1 && heads % x.groups == 0, "groups", fmt::format("a divisor of the {} heads", heads),
                fmt::format("{}", x.groups));
    const Mamba2Checks checks{{x.name}, xBC, xBC.size(0), heads, pool.size(2), states, x.groups};
    checks.shape("xBC", xBC, {checks.sequences, checks.channels()}, "(B, H P + 2 groups N)");
    checks.dtype("xBC", xBC, {DType::f32, DType::bf16, DType::f16});
    return checks;
}

void set_convolution(const Mamba2Checks& check, const View& weight, const View& bias, const View& conv, const View& pool,
                     Mamba2LayerArgs& args) {
    check.shape("conv_weight", weight, {check.channels(), kMamba2Taps}, "(C, 4)");
    check.number("conv_weight", weight);
    args.weight = tagged(weight);
    args.weight_channel = weight.stride(0);
    args.weight_tap = near_stride(check, "conv_weight", weight, 1);
    if (bias.defined()) {
        check.shape("conv_bias", bias, {check.channels()}, "(C,)");
        check.number("conv_bias", bias);
        args.bias = tagged(bias);
        args.bias_channel = bias.stride(0);
    }
    check.rank("conv_pool", conv, 3, "(slots, C, columns)");
    check.shape("conv_pool", conv, {pool.size(0), check.channels(), conv.size(2)}, "(slots, C, columns)");
    GDN_REQUIRE(check, conv.size(2) >= kMamba2Taps - 1, "conv_pool", "3 columns or more", shape_text(conv));
    check.number("conv_pool", conv);
    check.distinct("conv_pool", conv);
    args.conv = {tagged(conv), conv.stride(0), conv.stride(1), near_stride(check, "conv_pool", conv, 2)};
    args.conv_columns = check.count("conv_pool", "columns", conv.size(2));
}

void set_states(const Mamba2Checks& check, const Mamba2DecodeLayer& x, const SlotTensors& states, Mamba2LayerArgs& args) {
    const View& pool = states.pool;
    check.dtype("state_pool", pool, {DType::f32, DType::bf16, DType::f16, DType::i8});
    check.device("state_pool", pool, check.xBC, "xBC");
    const View scales = view_of(x.state_scales);
    check_state_scales(check, "state_pool", pool, "state_scales", scales, 1, DType::f32, "N");
    GDN_REQUIRE(check, pool.contiguous_tail(3) && pool.aligned16(), "state_pool", "contiguous states that start on 16 bytes",
                stride_text(pool));
    check.distinct("state_pool", pool);
    GDN_REQUIRE(check, !states.by_token(), "state_indices", "(B,)", shape_text(states.slots));
    check_slots(check, states, {check.sequences, 1, false, check.xBC, "xBC"});
    args.pool = pool.data;
    args.pool_slot = pool.stride(0);
    if (scales.defined()) args.scales = static_cast<float*>(scales.data), args.scales_slot = scales.stride(0);
    args.slot_count = check.count("state_pool", "slots", pool.size(0));
    args.slot_steps = 1;
    if (states.slots.defined()) set_slots(check, args, states);
    args.null_slot = check_null_slot(check, x.null_slot);
}

PreparedMamba2 prepare_mamba2(const Mamba2DecodeLayer& x) {
    const View xBC(x.xBC), dt(x.dt), weight(x.conv_weight), bias = view_of(x.conv_bias), A(x.A), D = view_of(x.D);
    const View dt_bias = view_of(x.dt_bias), z = view_of(x.z), conv(x.conv_pool), pool(x.state_pool), out(x.out);
    const Mamba2Checks check = check_sizes(x, xBC, pool);
    PreparedMamba2 prepared{.xBC = xBC};
    Mamba2LayerArgs& args = prepared.args;
    args.xBC = check.by_channel("xBC", xBC, check.channels(), "(B, C)");
    args.dt = check.by_channel("dt", dt, check.heads, "(B, H)");
    args.z = check.by_channel("z", z, check.rows(), "(B, H P)");
    args.A = check.per_head("A", A);
    args.D = check.per_head_or_row("D", D);
    args.dt_bias = check.per_head("dt_bias", dt_bias);
    set_convolution(check, weight, bias, conv, pool, args);
    const SlotTensors states = slot_tensors("state_pool", "state_indices", pool, x.state_indices, {}, {});
    set_states(check, x, states, args);
    GDN_REQUIRE(check, x.dt_lowest <= x.dt_highest, "dt_limit", "a lower bound that is not above the upper one",
                fmt::format("({}, {})", x.dt_lowest, x.dt_highest));
    args.out = check.by_channel("out", out, check.rows(), "(B, H P)");
    check.dtype("out", out, {*dtype_of(xBC)});
    check.distinct("out", out);
    check.apart({{"conv_pool", conv}, {"state_pool", pool}, {"state_scales", view_of(x.state_scales)}, {"out", out}},
                {{"xBC", xBC},
                 {"dt", dt},
                 {"conv_weight", weight},
                 {"conv_bias", bias},
                 {"A", A},
                 {"D", D},
                 {"dt_bias", dt_bias},
                 {"z", z},
                 {"state_indices", states.slots}});
    const int64_t group_rows = check.rows() / check.groups;
    args.sequences = check.count("xBC", "sequences", check.sequences);
    args.heads = check.count("state_pool", "heads", check.heads);
    args.dim = check.count("state_pool", "channels", check.dim);
    check.count("xBC", "channels", check.channels());
    check.count("state_pool", "bytes of a group", group_rows * check.states * bytes_of(*dtype_of(pool)));
    args.groups = static_cast<int>(check.groups);
    args.group_rows = static_cast<int>(group_rows);
    args.silu = x.silu, args.softplus = x.dt_softplus;
    args.lowest = static_cast<float>(x.dt_lowest), args.highest = static_cast<float>(x.dt_highest);
    check.grid("xBC", {check.sequences * kMostMamba2Parts, check.groups, 1});
    prepared.problem = {.sequences = check.sequences,
                        .groups = args.groups,
                        .group_rows = args.group_rows,
                        .columns = static_cast<int>(check.states),
                        .state = *dtype_of(pool)};
    return prepared;
}

void run_mamba2(const Mamba2DecodeLayer& x) {
    const PreparedMamba2 prepared = prepare_mamba2(x);
    const DeviceScope scope(prepared.xBC.device_index);
    Mamba2DecodeLayerKernel::run(prepared.problem, prepared.args, target_of(x.name, prepared.xBC));
}

GDN_REGISTER(Mamba2DecodeLayer, prepare_mamba2, run_mamba2)

}  // namespace
}  // namespace gdn_cuda::layers

namespace gdn_cuda {

Tensor mamba2_decode_layer(const Mamba2DecodeLayer& given) {
    return into_out<Mamba2DecodeLayer, layers::run_mamba2>(given, [](Mamba2DecodeLayer x) {
        const View xBC(x.xBC), pool(x.state_pool);
        const Checks check{x.name};
        check.rank("xBC", xBC, 2, "(B, C)");
        check.rank("state_pool", pool, 4, "(slots, H, P, N)");
        const std::vector<int64_t> sizes = {xBC.size(0), pool.size(1) * pool.size(2)};
        x.out.emplace(new_tensor(x.xBC, sizes));
        return x;
    });
}

}  // namespace gdn_cuda
