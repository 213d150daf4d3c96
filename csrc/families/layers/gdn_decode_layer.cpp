// gdn_decode_layer: a layer's step between its projections, with states in slots of two pools.
#include <cmath>
#include <gdn_cuda/layers.hpp>
#include <vector>

#include "../../operators/float64.hpp"
#include "../../operators/operator.hpp"
#include "../../operators/state_slots.hpp"
#include "decode_layer.hpp"
#include "decode_layer_checks.hpp"
#include "near_stride.hpp"

namespace gdn_cuda::layers {
namespace {

struct PreparedLayer {
    View qkvz;
    DecodeLayerProblem problem{};
    DecodeLayerArgs args{};
};

LayerChecks check_projection(const GdnDecodeLayer& x, const View& qkvz) {
    const LayerChecks check{{x.name}, qkvz, "qkvz"};
    check.rank("qkvz", qkvz, 3, "(B, T, …)");
    return check;
}

LayerSizes check_sizes(const LayerChecks& check, const GdnDecodeLayer& x, const View& qkvz) {
    GDN_REQUIRE(check, check.is_head_count(x.heads_k), "heads", "a number of key heads", fmt::format("{}", x.heads_k));
    GDN_REQUIRE(check, x.heads_v % x.heads_k == 0 && check.is_head_count(x.heads_v), "heads",
                fmt::format("a number of value heads that is a multiple of the {} key heads", x.heads_k),
                fmt::format("{}", x.heads_v));
    check.head_dims("dk", x.dk, "dv", x.dv);
    const LayerSizes sizes{qkvz.size(0), qkvz.size(1), x.heads_k, x.heads_v, x.dk, x.dv};
    check.count("qkvz", "sequences", sizes.sequences);
    check.count("qkvz", "tokens a sequence", sizes.tokens, kMostLayerTokens);
    return sizes;
}

void set_projections(const LayerChecks& check, const GdnDecodeLayer& x, const View& qkvz, const LayerSizes& sizes, DType io,
                     DecodeLayerArgs& args) {
    const bool split = x.layout == LayerLayout::split, interleaved = x.layout == LayerLayout::qwen3_next;
    const int64_t per_key = sizes.heads_per_key(), key_rows = per_key * sizes.dv;
    const View z = view_of(x.z);
    GDN_REQUIRE(check, z.defined() == split, "z", split ? "a tensor with layout 'split'" : "None, as it is a part of qkvz",
                split ? "None" : "a tensor");
    check.shape("qkvz", qkvz, {sizes.sequences, sizes.tokens, sizes.channels() + (split ? 0 : sizes.rows())},
                split ? "(B, T, 2 Hk dk + Hv dv)" : "(B, T, 2 Hk dk + 2 Hv dv)");
    check.last_contiguous("qkvz", qkvz);
    const auto part = [&](const View& of, int64_t first, int64_t head) {
        return Rows{static_cast<char*>(of.data) + first * bytes_of(io), of.stride(0), of.stride(1), head};
    };
    if (interleaved) {
        const int64_t head = 2 * sizes.dk + 2 * key_rows;
        args.query = part(qkvz, 0, head);
        args.key = part(qkvz, sizes.dk, head);
        args.value = part(qkvz, 2 * sizes.dk, head);
        args.z = part(qkvz, 2 * sizes.dk + key_rows, head);
    } else {
        args.query = part(qkvz, 0, sizes.dk);
        args.key = part(qkvz, sizes.keys(), sizes.dk);
        args.value = part(qkvz, 2 * sizes.keys(), key_rows);
        if (split) {
            check.shape("z", z, {sizes.sequences, sizes.tokens, sizes.rows()}, "(B, T, Hv dv)");
            check.dtype("z", z, {io});
            check.device("z", z, qkvz, "qkvz");
            check.last_contiguous("z", z);
        }
        args.z = split ? part(z, 0, key_rows) : part(qkvz, sizes.channels(), key_rows);
    }
}

void set_gates(const LayerChecks& check, const GdnDecodeLayer& x, const View& qkvz, const View& ba, const LayerSizes& sizes,
               DType io, DecodeLayerArgs& args) {
    const bool split = x.layout == LayerLayout::split;
    const View a = view_of(x.a);
    GDN_REQUIRE(check, a.defined() == split, "a", split ? "a tensor with layout 'split'" : "None, as it is a part of ba",
                split ? "None" : "a tensor");
    const auto gates_of = [&](const char* argument, const View& view, int64_t width, const char* layout) {
        check.shape(argument, view, {sizes.sequences, sizes.tokens, width}, layout);
        dtype_beside(check, argument, view, io);
        check.device(argument, view, qkvz, "qkvz");
        const int64_t head = view.stride(2);
        return DecodeLayerArgs::Gates{tagged(view), view.stride(0), view.stride(1), sizes.heads_per_key() * head, head};
    };
    args.b = gates_of("ba", ba, split ? sizes.value_heads : 2 * sizes.value_heads, split ? "(B, T, Hv)" : "(B, T, 2 Hv)");
    if (split) {
        args.a = gates_of("a", a, sizes.value_heads, "(B, T, Hv)");
        return;
    }
    const bool interleaved = x.layout == LayerLayout::qwen3_next;
    if (interleaved) args.b.key_head *= 2;
    args.a = args.b;
    const int64_t first = (interleaved ? sizes.heads_per_key() : sizes.value_heads) * args.b.head;
    args.a.values.data = static_cast<const char*>(args.b.values.data) + first * bytes_of(args.b.values.type);
}

void set_weights(const LayerChecks& check, const View& weight, const View& bias, const View& A_log, const View& dt_bias,
                 const View& norm, const LayerSizes& sizes, DecodeLayerArgs& args) {
    check.convolution(weight, bias, sizes.channels(), kLayerTaps, args);
    args.A_log = check.numbers("A_log", A_log, sizes.value_heads, "(Hv,)");
    args.dt_bias = check.numbers("dt_bias", dt_bias, sizes.value_heads, "(Hv,)");
    check.last_contiguous("A_log", A_log);
    check.last_contiguous("dt_bias", dt_bias);
    args.norm_weight = check.numbers("norm_weight", norm, sizes.dv, "(dv,)");
    args.norm_weight_row = norm.stride(0);
}

void set_states(const LayerChecks& check, const GdnDecodeLayer& x, const View& qkvz, const LayerSizes& sizes, const View& conv,
                const View& pool, PreparedLayer& prepared) {
    DecodeLayerArgs& args = prepared.args;
    const View step_conv = view_of(x.step_conv);
    check.states("state_pool", pool, 4, sizes);
    prepared.problem.state = dtype_beside(check, "state_pool", pool, *dtype_of(qkvz), {DType::f32, DType::bf16});
    const SlotTensors states = slot_tensors("state_pool", "state_indices", pool, x.state_indices, x.verify, x.steps);
    const View& steps = states.steps;
    check_slots(check, states, {sizes.sequences, sizes.tokens, false, qkvz, "qkvz"});
    args.by_token = states.by_token();

    const int64_t columns = args.by_token ? kLayerTaps - 2 + std::max<int64_t>(sizes.tokens, 1) : kLayerTaps - 1;
    args.conv =
        check.conv_pool("conv_pool", conv, pool.size(0), sizes.channels(), columns, "(slots, 2 Hk dk + Hv dv, columns)");
    args.conv_columns = check.count("conv_pool", "columns", conv.size(2));

    GDN_REQUIRE(check, step_conv.defined() == steps.defined(), step_conv.defined() ? "step_states" : "step_conv",
                "both step_conv and step_states", "one of them");
    args.slot_count = check.count("state_pool", "slots", pool.size(0));
    args.slot_steps = 1;
    if (states.slots.defined()) set_slots(check, args, states);
    args.accepted = tagged(states.accepted);
    args.null_slot = check_null_slot(check, x.null_slot);
    args.state_in = args.state_out = pool.data;
    args.state_slot = args.out_slot = pool.stride(0);
    if (!steps.defined()) return;
    check.states("step_states", steps, 5, sizes);
    check.dtype("step_states", steps, {prepared.problem.state});
    check.rank("step_conv", step_conv, 4, "(rows, tokens, C, 3)");
    check.shape("step_conv", step_conv, {steps.size(0), steps.size(1), sizes.channels(), kLayerTaps - 1},
                "(rows, tokens, 2 Hk dk + Hv dv, 3), as many rows and tokens as step_states has");
    check.number("step_conv", step_conv);
    check.distinct("step_conv", step_conv);
    args.state_out = steps.data;
    args.out_slot = steps.stride(0);
    args.out_step = steps.stride(1);
    args.step_conv = {tagged(step_conv), step_conv.stride(0), step_conv.stride(1), step_conv.stride(2),
                      near_stride(check, "step_conv", step_conv, 3)};
    args.step_slots = tagged(states.step_slots);
    args.step_slot_count = check.count("step_states", "rows", steps.size(0));
}

bool reads_units(DecodeLayerArgs& args, const View& weight, const View& bias, const View& qkvz, const View& z,
                 const View& conv) {
    const UnitPool pool = unit_pool(conv, qkvz);
    args.by_columns = pool == UnitPool::by_columns;
    return !args.by_token && args.step_conv.values.data == nullptr && pool != UnitPool::none && has_unit_rows(qkvz) &&
           has_unit_rows(z) && has_unit_weights(weight, bias, qkvz);
}

PreparedLayer prepare_layer(const GdnDecodeLayer& x) {
    const View qkvz(x.qkvz), ba(x.ba), weight(x.conv_weight), bias = view_of(x.conv_bias);
    const LayerChecks check = check_projection(x, qkvz);
    const View A_log(x.gates.A_log), dt_bias(x.gates.dt_bias);
    const View norm(x.norm_weight), conv(x.conv_pool), pool(x.state_pool), out(x.out);
    const LayerSizes sizes = check_sizes(check, x, qkvz);
    PreparedLayer prepared{.qkvz = qkvz};
    DecodeLayerArgs& args = prepared.args;
    const DType io = dtype_or_f64(check, "qkvz", qkvz, {DType::bf16, DType::f16});
    set_projections(check, x, qkvz, sizes, io, args);
    set_gates(check, x, qkvz, ba, sizes, io, args);
    set_weights(check, weight, bias, A_log, dt_bias, norm, sizes, args);
    set_states(check, x, qkvz, sizes, conv, pool, prepared);
    check.norm_eps(x.norm_eps);
    check.scale(x.scale);

    check.shape("out", out, {sizes.sequences, sizes.tokens, sizes.rows()}, "(B, T, Hv dv)");
    check.dtype("out", out, {io});
    check.device("out", out, qkvz, "qkvz");
    check.last_contiguous("out", out);
    check.distinct("out", out);
    check.apart({{"conv_pool", conv},
                 {"state_pool", pool},
                 {"step_conv", view_of(x.step_conv)},
                 {"step_states", view_of(x.steps.step_states)},
                 {"out", out}},
                {{"qkvz", qkvz},
                 {"ba", ba},
                 {"conv_weight", weight},
                 {"conv_bias", bias},
                 {"A_log", A_log},
                 {"dt_bias", dt_bias},
                 {"norm_weight", norm},
                 {"state_indices", view_of(x.state_indices)},
                 {"z", view_of(x.z)},
                 {"a", view_of(x.a)},
                 {kAcceptedTokens, accepted_of(x.verify)},
                 {"step_slots", view_of(x.steps.step_slots)}});

    args.output = out.data;
    args.output_batch = out.stride(0);
    args.output_token = out.stride(1);
    args.sequences = static_cast<int>(sizes.sequences);
    args.tokens = static_cast<int>(sizes.tokens);
    args.key_heads = static_cast<int>(sizes.key_heads);
    args.heads_per_key = static_cast<int>(sizes.heads_per_key());
    args.dv = static_cast<int>(sizes.dv);
    args.scale = static_cast<float>(x.scale.value_or(1.0 / std::sqrt(static_cast<double>(sizes.dk))));
    args.epsilon = static_cast<float>(x.norm_eps);
    args.beta_scale = x.gates.beta_factor();
    args.silu = x.silu;
    args.sigmoid_gate = x.gate_activation == GateActivation::sigmoid;
    check.grid("qkvz", {sizes.sequences * kMostLayerBlocks, sizes.key_heads, 1});
    prepared.problem = {.sequences = sizes.sequences,
                        .tokens = sizes.tokens,
                        .key_heads = args.key_heads,
                        .heads_per_key = args.heads_per_key,
                        .dk = static_cast<int>(sizes.dk),
                        .dv = args.dv,
                        .io = io,
                        .state = prepared.problem.state,
                        .plain = reads_units(args, weight, bias, qkvz, view_of(x.z), conv)};
    return prepared;
}

void run_layer(const GdnDecodeLayer& x) {
    const PreparedLayer prepared = prepare_layer(x);
    const DeviceScope scope(prepared.qkvz.device_index);
    DecodeLayer::run(prepared.problem, prepared.args, target_of(x.name, prepared.qkvz));
}

GDN_REGISTER(GdnDecodeLayer, prepare_layer, run_layer)

}  // namespace
}  // namespace gdn_cuda::layers

namespace gdn_cuda {

Tensor gdn_decode_layer(const GdnDecodeLayer& given) {
    return into_out<GdnDecodeLayer, layers::run_layer>(given, [](GdnDecodeLayer x) {
        const View qkvz(x.qkvz);
        Checks{x.name}.rank("qkvz", qkvz, 3, "(B, T, …)");
        const std::vector<int64_t> sizes = {qkvz.size(0), qkvz.size(1), x.heads_v * x.dv};
        x.out.emplace(new_tensor(x.qkvz, sizes));
        return x;
    });
}

}  // namespace gdn_cuda
