// conv_split_l2norm with a layer's gates, its variant with a pool of states, and the gradients of the split and the norms.
#include <torch/csrc/stable/ops.h>

#include <array>
#include <bit>
#include <cmath>
#include <gdn_cuda/layers.hpp>
#include <vector>

#include "../../operators/operator.hpp"
#include "../conv/causal_conv_pool.hpp"
#include "../conv/causal_states.hpp"
#include "gate_inputs.hpp"
#include "split_backward.hpp"
#include "split_columns.hpp"
#include "split_conv.hpp"

namespace gdn_cuda::layers {
namespace {

constexpr const char* kFunction = "conv_split_l2norm";

struct SplitBackwardCall {
    static constexpr const char* name = "conv_split_l2norm_backward";
    Given y, grad_query, grad_key, grad_value;
    int64_t key_heads = 0, value_heads = 0, dk = 0, dv = 0;
    bool l2norm = true;
    double eps = 0;

    GDN_FIELDS(y, grad_query, grad_key, grad_value, key_heads, value_heads, dk, dv, l2norm, eps)
};

// Checks heads, their sizes, and whether q and k are normalised.
template <class Call>
SplitHeads heads_of(const Checks& check, const Call& x, const View& rows, const char* argument) {
    for (const auto& [name, count] :
         {std::pair{"heads", x.key_heads}, std::pair{"heads", x.value_heads}, std::pair{"dk", x.dk}, std::pair{"dv", x.dv}})
        GDN_REQUIRE(check, count >= 0 && count < (int64_t{1} << 24), name, "numbers from 0 to 2^24", fmt::format("{}", count));
    const int64_t channels = 2 * x.key_heads * x.dk + x.value_heads * x.dv;
    GDN_REQUIRE(check, rows.size(1) == channels, argument,
                fmt::format("D = 2·{}·{} + {}·{} = {} channels", x.key_heads, x.dk, x.value_heads, x.dv, channels),
                shape_text(rows));
    GDN_REQUIRE(check, x.eps >= 0 && std::isfinite(x.eps), "eps", "a number that is not negative", fmt::format("{}", x.eps));
    return {.key_heads = static_cast<int>(x.key_heads),
            .value_heads = static_cast<int>(x.value_heads),
            .dk = static_cast<int>(x.dk),
            .dv = static_cast<int>(x.dv),
            .normalised = x.l2norm,
            .epsilon = static_cast<float>(x.eps)};
}
std::array<std::vector<int64_t>, 3> shapes_of(const SplitHeads& heads, const View& x) {
    const int64_t B = x.size(0), L = x.size(2);
    const std::vector<int64_t> keys{B, L, heads.key_heads, heads.dk};
    return {keys, keys, {B, L, heads.value_heads, heads.dv}};
}

struct PreparedSplit {
    conv::PreparedCausal conv;
    SplitHeads heads;
    SplitGates gates;

    SplitArgs args() const { return {.conv = conv.args, .heads = heads, .gates = gates}; }
};

// Checks the gates: all of their tensors or none.
template <class Call>
void set_gates(const Checks& check, const Call& x, PreparedSplit& prepared) {
    const bool given = x.a.has_value();
    for (const auto& [name, tensor] : {std::pair{"b", &x.b}, std::pair{"A_log", &x.A_log}, std::pair{"dt_bias", &x.dt_bias}})
        GDN_REQUIRE(check, tensor->has_value() == given, name, given ? "a tensor, as a is given" : "None without a",
                    given ? "None" : "a tensor");
    if (!given) return;
    const View &rows = prepared.conv.x, a = view_of(x.a), b = view_of(x.b), A_log = view_of(x.A_log),
               dt_bias = view_of(x.dt_bias);
    check.shape("a", a, {rows.size(0), rows.size(2), x.value_heads}, "(B, L, value_heads)");
    check.device("a", a, rows, "x");
    check_gate_inputs(check, {A_log, dt_bias, a, b});
    prepared.gates = {.A_log = tagged(A_log), .dt_bias = tagged(dt_bias), .a = scalars_of(a), .b = scalars_of(b)};
}

template <class Call>
PreparedSplit prepare_any(const Call& x) {
    const Checks check{kFunction};
    static const OptionalTensor none;
    PreparedSplit prepared{
        .conv = conv::prepare_inputs(check, {x.x, x.weight, x.bias, none, x.cu_seqlens, true}), .heads = {}, .gates = {}};
    const conv::PreparedCausal& conv = prepared.conv;
    prepared.heads = heads_of(check, x, conv.x, "x");
    set_gates(check, x, prepared);
    SplitArgs args = prepared.args();
    check.grid("x", with_gates(args, split_blocks(i64{conv.args.batches} * conv.args.tokens, prepared.heads),
                               split_config(conv.problem.io).threads));
    check.grid("x", conv::causal_states_blocks(conv.sequences, conv.args.channels));
    return prepared;
}
PreparedSplit prepare_split(const ConvSplitL2norm& x) {
    PreparedSplit prepared = prepare_any(x);
    if (x.initial_states) conv::set_initial_states(Checks{kFunction}, prepared.conv, View(*x.initial_states));
    return prepared;
}
PreparedSplit prepare_prefill(const ConvSplitL2normPrefill& x) {
    const Checks check{kFunction};
    PreparedSplit prepared = prepare_any(x);
    conv::set_pool(check, prepared.conv, {x.conv_state, x.state_indices, x.has_initial_state}, x.cu_seqlens.has_value());
    check.apart({{"conv_state", View(x.conv_state)}}, {{"x", prepared.conv.x},
                                                       {"weight", View(x.weight)},
                                                       {"bias", view_of(x.bias)},
                                                       {"state_indices", view_of(x.state_indices)},
                                                       {"has_initial_state", view_of(x.has_initial_state)},
                                                       {"cu_seqlens", view_of(x.cu_seqlens)},
                                                       {"a", view_of(x.a)},
                                                       {"b", view_of(x.b)},
                                                       {"A_log", view_of(x.A_log)},
                                                       {"dt_bias", view_of(x.dt_bias)}});
    return prepared;
}

// Whether rows consist of whole vectors, none of which spans two of q, k and v, and a head's lanes are a power of two.
bool columns_can_split(const conv::PreparedCausal& prepared, const SplitHeads& heads) {
    const conv::CausalProblem& problem = prepared.problem;
    const int64_t keys = int64_t{heads.key_heads} * heads.dk, values = int64_t{heads.value_heads} * heads.dv;
    const SplitColumnsConfig config = split_columns_config(problem.io, heads, false);
    const auto whole = [&](int64_t channels) { return channels % 8 == 0; };
    const bool lanes = !heads.normalised || keys == 0 ||
                       (std::has_single_bit(static_cast<unsigned>(heads.dk)) && heads.dk >= config.lane_channels &&
                        heads.dk <= config.channels());
    return problem.channels_last && problem.taps == SplitColumnsConfig::taps && whole(keys) && whole(values) && lanes &&
           has_vectors(prepared, prepared.x) && whole(prepared.x.stride(0)) && whole(prepared.x.stride(2));
}

using Split = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;  // q, k, v, beta, gate

// Whether layers/split_columns can replace the states: a row's first segment alone must read its state.
bool columns_can_write_states(const PreparedSplit& prepared) {
    const conv::CausalArgs& conv = prepared.conv.args;
    return conv.sequences.cu_seqlens.data == nullptr && conv.tokens > 0 && columns_can_split(prepared.conv, prepared.heads);
}

Split run_any(const PreparedSplit& prepared, const Tensor& x, const OptionalTensor& b, bool writes_states,
              const Target& target) {
    const auto shapes = shapes_of(prepared.heads, prepared.conv.x);
    const int64_t B = prepared.conv.x.size(0), L = prepared.conv.x.size(2);
    const std::vector<int64_t> gate_shape =
        b ? std::vector<int64_t>{B, L, prepared.heads.value_heads} : std::vector<int64_t>{0};
    SplitArgs args = prepared.args();
    const std::array<Tensor, 3> out{new_tensor(x, shapes[0]), new_tensor(x, shapes[1]), new_tensor(x, shapes[2])};
    for (int i = 0; i < 3; ++i) args.out[i] = memory_of(out[i]);
    const Tensor beta = new_tensor(b.value_or(x), gate_shape), gate = new_tensor(x, gate_shape, ScalarType::Float);
    args.gates.beta = memory_of(beta);
    args.gates.gate = static_cast<float*>(memory_of(gate));
    args.writes_states = writes_states;
    if (columns_can_split(prepared.conv, prepared.heads))
        SplitColumns::run(prepared.conv.problem.io, args, target);
    else
        SplitConv::run(prepared.conv.problem.io, args, target);
    return {out[0], out[1], out[2], beta, gate};
}
Split run_split(const ConvSplitL2norm& x) {
    const PreparedSplit prepared = prepare_split(x);
    const DeviceScope scope(prepared.conv.x.device_index);
    return run_any(prepared, x.x, x.b, false, target_of(kFunction, prepared.conv.x));
}
Split run_prefill(const ConvSplitL2normPrefill& x) {
    const PreparedSplit prepared = prepare_prefill(x);
    const DeviceScope scope(prepared.conv.x.device_index);
    const Target target = target_of(kFunction, prepared.conv.x);
    const bool with_states = columns_can_write_states(prepared);
    Split out = run_any(prepared, x.x, x.b, with_states, target);
    if (with_states) return out;
    // After the convolution, which still reads the previous states.
    const conv::CausalArgs& conv = prepared.conv.args;
    conv::CausalFinalStates::run(prepared.conv.problem.io,
                                 {.x = conv.x,
                                  .sequences = conv.sequences,
                                  .final_states = conv.sequences.initial,
                                  .in_place = true,
                                  .channels = conv.channels},
                                 target);
    return out;
}

// ---- Gradients

struct PreparedSplitBackward {
    View y;
    DType io;
    SplitBackwardArgs args{};
};

PreparedSplitBackward prepare_backward(const SplitBackwardCall& x) {
    const Checks check{x.name};
    PreparedSplitBackward prepared{.y = View(x.y), .io = {}};
    const View& y = prepared.y;
    check.rank("y", y, 3, "(B, D, L)");
    prepared.io = check.number("y", y);
    SplitBackwardArgs& args = prepared.args;
    args.heads = heads_of(check, x, y, "y");
    const auto shapes = shapes_of(args.heads, y);
    const View grads[] = {View(x.grad_query), View(x.grad_key), View(x.grad_value)};
    const char* const names[] = {"grad_query", "grad_key", "grad_value"};
    for (int i = 0; i < 3; ++i) {
        check.shape(names[i], grads[i], {shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3]}, "(B, L, heads, d)");
        check.dtype(names[i], grads[i], {prepared.io});
        check.device(names[i], grads[i], y, "y");
        GDN_REQUIRE(check, grads[i].contiguous_tail(4), names[i], "a contiguous tensor", stride_text(grads[i]));
        args.grads[i] = grads[i].data;
    }
    args.y = conv::tensor_of(y);
    args.batches = check.count("y", "sequences", y.size(0));
    args.tokens = check.count("y", "tokens", y.size(2));
    check.grid("y", split_blocks(i64{args.batches} * args.tokens, args.heads));
    return prepared;
}

Tensor run_backward(const SplitBackwardCall& x) {
    PreparedSplitBackward prepared = prepare_backward(x);
    const View& y = prepared.y;
    const std::vector<int64_t> shape{y.size(0), y.size(2), y.size(1)};
    const Tensor dy = new_tensor(x.y, shape);
    prepared.args.dy = memory_of(dy);
    const DeviceScope scope(y.device_index);
    SplitBackward::run(prepared.io, prepared.args, target_of(x.name, y));
    return torch::stable::transpose(dy, 1, 2);
}

GDN_REGISTER(ConvSplitL2norm, prepare_split, run_split)
GDN_REGISTER(ConvSplitL2normPrefill, prepare_prefill, run_prefill)
GDN_REGISTER(SplitBackwardCall, prepare_backward, run_backward)

}  // namespace
}  // namespace gdn_cuda::layers

namespace gdn_cuda {

GDN_FUNCTION(conv_split_l2norm, ConvSplitL2norm, layers::run_split)
GDN_FUNCTION(conv_split_l2norm_prefill, ConvSplitL2normPrefill, layers::run_prefill)

}  // namespace gdn_cuda
