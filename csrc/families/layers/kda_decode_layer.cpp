// kda_decode_layer: a Kimi Delta Attention layer's step between its projections, with states in slots of pools.
#include <cmath>
#include <gdn_cuda/layers.hpp>
#include <vector>

#include "../../operators/float64.hpp"
#include "../../operators/operator.hpp"
#include "../../operators/state_slots.hpp"
#include "../gdn/gate_checks.hpp"
#include "decode_layer.hpp"
#include "decode_layer_checks.hpp"
#include "gate_inputs.hpp"

namespace gdn_cuda::layers {
namespace {

struct PreparedKda {
    View qkv;
    DecodeLayerProblem problem{};
    DecodeLayerArgs args{};
};

LayerChecks check_projection(const KdaDecodeLayer& x, const View& qkv, const View& pool) {
    const LayerChecks check{{x.name}, qkv, "qkv"};
    check.rank("qkv", qkv, 2, "(B, C)");
    check.rank("state_pool", pool, 4, "(slots, Hv, dv, dk)");
    return check;
}

// Key heads follow from the projection's width.
LayerSizes check_sizes(const LayerChecks& check, const View& qkv, const View& pool) {
    const int64_t value_heads = pool.size(1), dv = pool.size(2), dk = pool.size(3);
    check.head_dims("state_pool", dk, "state_pool", dv);
    GDN_REQUIRE(check, check.is_head_count(value_heads), "state_pool", "a number of value heads", shape_text(pool));
    const int64_t keys = (qkv.size(1) - value_heads * dv) / (2 * dk);
    GDN_REQUIRE(check, keys >= 1 && value_heads % keys == 0 && 2 * keys * dk + value_heads * dv == qkv.size(1), "qkv",
                fmt::format("(B, 2 Hk {} + {} {}) with Hk a divisor of the {} value heads", dk, value_heads, dv, value_heads),
                shape_text(qkv));
    const LayerSizes sizes{qkv.size(0), 1, keys, value_heads, dk, dv};
    check.count("qkv", "sequences", sizes.sequences);
    return sizes;
}

void set_projections(const LayerChecks& check, const View& qkv, const View& z, const View& norm, const LayerSizes& sizes,
                     DType io, DecodeLayerArgs& args) {
    check.last_contiguous("qkv", qkv);
    const int64_t key_rows = sizes.heads_per_key() * sizes.dv;
    const auto part = [&](const View& of, int64_t first, int64_t head) {
        return Rows{static_cast<char*>(of.data) + first * bytes_of(io), of.stride(0), 0, head};
    };
    args.query = part(qkv, 0, sizes.dk);
    args.key = part(qkv, sizes.keys(), sizes.dk);
    args.value = part(qkv, 2 * sizes.keys(), key_rows);
    GDN_REQUIRE(check, z.defined() == norm.defined(), z.defined() ? "norm_weight" : "z", "z with norm_weight, or neither",
                "None");
    if (!z.defined()) return;
    check.shape("z", z, {sizes.sequences, sizes.rows()}, "(B, Hv dv)");
    check.dtype("z", z, {io});
    check.device("z", z, qkv, "qkv");
    check.last_contiguous("z", z);
    args.z = part(z, 0, key_rows);
    args.norm_weight = check.numbers("norm_weight", norm, sizes.dv, "(dv,)");
    args.norm_weight_row = norm.stride(0);
}

void set_gates(const LayerChecks& check, const KdaDecodeLayer& x, const View& qkv, const View& a, const View& b,
               const LayerSizes& sizes, DecodeLayerArgs& args) {
    const View A_log = view_of(x.gates.A_log), dt_bias = view_of(x.gates.dt_bias);
    const std::optional<double>& bound = x.bound.lower_bound;
    check.shape("a", a, {sizes.sequences, sizes.value_heads, sizes.dk}, "(B, Hv, dk)");
    check.number("a", a);
    check.shape("b", b, {sizes.sequences, sizes.value_heads}, "(B, Hv)");
    check.number("b", b);
    gdn::check_bound(check, bound);
    GDN_REQUIRE(check, A_log.defined() || bound || !dt_bias.defined(), "dt_bias", "None without A_log and lower_bound",
                "a tensor");
    const DType io = *dtype_of(qkv);
    if (A_log.defined()) check_head_parameter(check, "A_log", A_log, sizes.value_heads, io, a);
    const gdn::ChannelBias bias = gdn::check_channel_bias(check, dt_bias, sizes.value_heads, sizes.dk, io, qkv, "qkv");
    const int64_t per_key = sizes.heads_per_key();
    args.a = {tagged(a), a.stride(0), 0, per_key * a.stride(1), a.stride(1)};
    args.b = {tagged(b), b.stride(0), 0, per_key * b.stride(1), b.stride(1)};
    args.A_log = tagged(A_log);
    args.dt_bias = bias.values;
    args.channels = {.form = bound             ? gdn::ChannelGate::bounded
                             : A_log.defined() ? gdn::ChannelGate::softplus
                                               : gdn::ChannelGate::log_decay,
                     .lower_bound = static_cast<float>(bound.value_or(0)),
                     .channel = a.stride(2),
                     .bias_head = bias.head};
}

// One pool for the channels of query, key and value, or three.
struct ConvPools {
    View query, key, value;

    bool separate() const { return key.defined(); }
};

// (C, W), or (3, W, C / 3), as vLLM and FlashInfer keep it. Returns whether it can be read four channels at a time.
bool set_weights(const LayerChecks& check, const View& weight, const View& bias, const LayerSizes& sizes,
                 DecodeLayerArgs& args) {
    const bool by_parts = weight.rank == 3;
    GDN_REQUIRE(check, by_parts || weight.rank == 2, "conv_weight", "(C, W), or (3, W, C / 3)", shape_text(weight));
    const int64_t taps = weight.size(1);
    GDN_REQUIRE(check, taps >= 2 && taps <= kLayerTaps, "conv_weight", fmt::format("2 to {} taps", kLayerTaps),
                shape_text(weight));
    if (!by_parts) {
        check.convolution(weight, bias, sizes.channels(), taps, args);
        args.weight_part = sizes.keys() * args.weight_channel;
        return has_unit_weights(weight, bias, check.projection, true);
    }
    GDN_REQUIRE(check, sizes.keys() == sizes.rows(), "conv_weight", "(C, W), as values are not as wide as keys",
                shape_text(weight));
    check.shape("conv_weight", weight, {3, taps, sizes.keys()}, "(3, W, Hk dk)");
    check.tap_strides(weight, 2, 1, bias, sizes.channels(), args);
    args.weight_part = weight.stride(0);
    args.weight_by_taps = true;
    return taps == kLayerTaps && weight.stride(2) == 1 && has_unit_rows(weight, bytes_of(args.weight.type) / 2) &&
           has_unit_bias(bias, check.projection) && is_unit_type(weight, check.projection);
}

UnitPool set_conv_pools(const LayerChecks& check, const ConvPools& pools, const View& states, const LayerSizes& sizes,
                        int64_t taps, DecodeLayerArgs& args) {
    const int64_t slots = states.size(0), keys = sizes.keys();
    GDN_REQUIRE(check, pools.key.defined() == pools.value.defined(), pools.key.defined() ? "value_conv_pool" : "key_conv_pool",
                "key_conv_pool with value_conv_pool, or neither", "None");
    const UnitPool unit = unit_pool(pools.query, check.projection);
    if (!pools.separate()) {
        args.conv =
            check.conv_pool("conv_pool", pools.query, slots, sizes.channels(), taps - 1, "(slots, 2 Hk dk + Hv dv, columns)");
        args.conv_columns = check.count("conv_pool", "columns", pools.query.size(2));
        const auto from = [&](int64_t channel) {
            DecodeLayerArgs::ConvStates part = args.conv;
            part.values.data = static_cast<const char*>(part.values.data) + channel * part.channel * bytes_of(part.values.type);
            return part;
        };
        args.conv_key = from(keys), args.conv_value = from(2 * keys);
        return unit;
    }
    args.conv = check.conv_pool("conv_pool", pools.query, slots, keys, taps - 1,
                                "(slots, Hk dk, columns), beside pools of key and value");
    args.conv_columns = check.count("conv_pool", "columns", pools.query.size(2));
    const auto other = [&](const char* name, const View& pool, int64_t channels, const char* layout) {
        const DecodeLayerArgs::ConvStates part = check.conv_pool(name, pool, slots, channels, taps - 1, layout);
        GDN_REQUIRE(check, pool.size(2) == pools.query.size(2), name,
                    fmt::format("{} columns, as conv_pool has", pools.query.size(2)), shape_text(pool));
        check.dtype(name, pool, {args.conv.values.type});
        return part;
    };
    args.conv_key = other("key_conv_pool", pools.key, keys, "(slots, Hk dk, columns)");
    args.conv_value = other("value_conv_pool", pools.value, sizes.rows(), "(slots, Hv dv, columns)");
    const bool same = unit_pool(pools.key, check.projection) == unit && unit_pool(pools.value, check.projection) == unit;
    return same ? unit : UnitPool::none;
}

void set_states(const LayerChecks& check, const KdaDecodeLayer& x, const SlotTensors& states, const LayerSizes& sizes,
                PreparedKda& prepared) {
    const View& pool = states.pool;
    DecodeLayerArgs& args = prepared.args;
    check.states("state_pool", pool, 4, sizes);
    prepared.problem.state = dtype_beside(check, "state_pool", pool, *dtype_of(check.projection), {DType::f32, DType::bf16});
    GDN_REQUIRE(check, !states.by_token(), "state_indices", "(B,)", shape_text(states.slots));
    check_slots(check, states, {sizes.sequences, 1, false, check.projection, "qkv"});
    args.slot_count = check.count("state_pool", "slots", pool.size(0));
    args.slot_steps = 1;
    if (states.slots.defined()) set_slots(check, args, states);
    args.null_slot = check_null_slot(check, x.null_slot);
    args.state_in = args.state_out = pool.data;
    args.state_slot = args.out_slot = pool.stride(0);
}

PreparedKda prepare_kda(const KdaDecodeLayer& x) {
    const View qkv(x.qkv), a(x.a), b(x.b), weight(x.conv_weight), bias = view_of(x.conv_bias), z = view_of(x.z);
    const View norm = view_of(x.norm_weight), pool(x.state_pool), out(x.out);
    const ConvPools pools{View(x.conv_pool), view_of(x.key_conv_pool), view_of(x.value_conv_pool)};
    const LayerChecks check = check_projection(x, qkv, pool);
    const LayerSizes sizes = check_sizes(check, qkv, pool);
    PreparedKda prepared{.qkv = qkv};
    DecodeLayerArgs& args = prepared.args;
    const DType io = dtype_or_f64(check, "qkv", qkv, {DType::bf16, DType::f16});
    set_projections(check, qkv, z, norm, sizes, io, args);
    set_gates(check, x, qkv, a, b, sizes, args);
    const bool unit_weights = set_weights(check, weight, bias, sizes, args);
    const int64_t taps = weight.size(1);
    const SlotTensors states = slot_tensors("state_pool", "state_indices", pool, x.state_indices, {}, {});
    set_states(check, x, states, sizes, prepared);
    check.rank("conv_pool", pools.query, 3, "(slots, C, columns)");
    const UnitPool unit = set_conv_pools(check, pools, pool, sizes, taps, args);
    check.norm_eps(x.norm_eps);
    check.scale(x.scale);
    check.shape("out", out, {sizes.sequences, sizes.rows()}, "(B, Hv dv)");
    check.dtype("out", out, {io});
    check.device("out", out, qkv, "qkv");
    check.last_contiguous("out", out);
    check.distinct("out", out);
    check.apart({{"conv_pool", pools.query},
                 {"key_conv_pool", pools.key},
                 {"value_conv_pool", pools.value},
                 {"state_pool", pool},
                 {"out", out}},
                {{"qkv", qkv},
                 {"a", a},
                 {"b", b},
                 {"conv_weight", weight},
                 {"conv_bias", bias},
                 {"A_log", view_of(x.gates.A_log)},
                 {"dt_bias", view_of(x.gates.dt_bias)},
                 {"z", z},
                 {"norm_weight", norm},
                 {"state_indices", states.slots}});

    args.output = out.data;
    args.output_batch = out.stride(0);
    args.sequences = static_cast<int>(sizes.sequences);
    args.tokens = 1;
    args.key_heads = static_cast<int>(sizes.key_heads);
    args.heads_per_key = static_cast<int>(sizes.heads_per_key());
    args.dv = static_cast<int>(sizes.dv);
    args.scale = static_cast<float>(x.scale.value_or(1.0 / std::sqrt(static_cast<double>(sizes.dk))));
    args.epsilon = static_cast<float>(x.norm_eps);
    args.beta_scale = x.gates.beta_factor();
    args.silu = x.silu;
    args.sigmoid_gate = x.gate_activation == GateActivation::sigmoid;
    args.by_columns = unit == UnitPool::by_columns;
    check.grid("qkv", {sizes.sequences * kMostLayerBlocks, sizes.key_heads, 1});
    prepared.problem = {.sequences = sizes.sequences,
                        .tokens = 1,
                        .key_heads = args.key_heads,
                        .heads_per_key = args.heads_per_key,
                        .dk = static_cast<int>(sizes.dk),
                        .dv = args.dv,
                        .io = io,
                        .state = prepared.problem.state,
                        .plain = unit != UnitPool::none && has_unit_rows(qkv) && unit_weights,
                        .channel_gates = true};
    return prepared;
}

void run_kda(const KdaDecodeLayer& x) {
    const PreparedKda prepared = prepare_kda(x);
    const DeviceScope scope(prepared.qkv.device_index);
    DecodeLayer::run(prepared.problem, prepared.args, target_of(x.name, prepared.qkv));
}

GDN_REGISTER(KdaDecodeLayer, prepare_kda, run_kda)

}  // namespace
}  // namespace gdn_cuda::layers

namespace gdn_cuda {

Tensor kda_decode_layer(const KdaDecodeLayer& given) {
    return into_out<KdaDecodeLayer, layers::run_kda>(given, [](KdaDecodeLayer x) {
        const View qkv(x.qkv), pool(x.state_pool);
        const Checks check{x.name};
        check.rank("qkv", qkv, 2, "(B, C)");
        check.rank("state_pool", pool, 4, "(slots, Hv, dv, dk)");
        const std::vector<int64_t> sizes = {qkv.size(0), pool.size(1) * pool.size(2)};
        x.out.emplace(new_tensor(x.qkv, sizes));
        return x;
    });
}

}  // namespace gdn_cuda
