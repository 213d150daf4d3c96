// causal_conv1d, with initial and final states as tensors or as slots of a pool.
#include <gdn_cuda/conv.hpp>
#include <vector>

#include "../../operators/layout.hpp"
#include "../../operators/operator.hpp"
#include "../../operators/torch_math.hpp"
#include "causal_conv.hpp"
#include "causal_conv_backward.hpp"
#include "causal_conv_checks.hpp"
#include "causal_conv_pool.hpp"
#include "causal_conv_tile.hpp"
#include "causal_states.hpp"

namespace gdn_cuda::conv {
namespace {

Blocks forward_blocks(const CausalProblem& problem, const CausalArgs& args) {
    if (!has_few_taps(problem))
        return causal_tile_blocks(causal_tile_config(problem), args.batches, args.channels, args.tokens);
    return problem.channels_last ? column_blocks(args, kShortestSegment, causal_conv_config(problem))
                                 : CausalConv::blocks(problem, args);
}
void run_forward(const PreparedCausal& prepared, const Target& target) {
    if (!has_few_taps(prepared.problem)) return CausalTile::run(prepared.problem, prepared.args, target);
    if (prepared.problem.channels_last) return CausalConvChannelsLast::run(prepared.problem, prepared.args, target);
    CausalConv::run(prepared.problem, prepared.args, target);
}
void check_grids(const Checks& check, PreparedCausal prepared) {
    const CausalArgs& args = prepared.args;
    for (const bool vectors : {false, true}) {
        prepared.problem.vectors = vectors;
        check.grid("x", forward_blocks(prepared.problem, args));
    }
    check.grid("x", causal_states_blocks(prepared.sequences, args.channels));
}
// Runs after the convolution, which reads the old states.
void write_states(const PreparedCausal& prepared, const CausalStates& final_states, bool in_place, const Target& target) {
    const CausalStatesArgs args{.x = prepared.args.x,
                                .sequences = prepared.args.sequences,
                                .final_states = final_states,
                                .in_place = in_place,
                                .channels = prepared.args.channels};
    CausalFinalStates::run(prepared.problem.io, args, target);
}

Tensor empty_output(PreparedCausal& prepared, const Tensor& x) {
    const Tensor out = empty_rows(x, layout_of(prepared.x));
    const View view(out);
    prepared.args.out = tensor_of(view);
    prepared.problem.vectors = prepared.args.vectors = has_vectors(prepared, prepared.x) && has_vectors(prepared, view);
    return out;
}

// ---- Functional, with gradients

PreparedCausal prepare_causal(const CausalConv1d& x) {
    const Checks check{x.name};
    PreparedCausal prepared = prepare_inputs(check, {x.x, x.weight, x.bias, x.seq_idx, x.cu_seqlens, x.silu});
    if (x.initial_states) set_initial_states(check, prepared, View(*x.initial_states));
    check_grids(check, prepared);
    return prepared;
}

std::tuple<Tensor, Tensor> run_causal(const CausalConv1d& x) {
    PreparedCausal prepared = prepare_causal(x);
    const Tensor out = empty_output(prepared, x.x);
    const std::vector<int64_t> none{0};
    const Tensor final_states = new_tensor(x.x, x.return_final_states ? prepared.states_shape() : none, ScalarType::Float);
    const DeviceScope scope(prepared.x.device_index);
    const Target target = target_of(x.name, prepared.x);
    run_forward(prepared, target);
    if (x.return_final_states) write_states(prepared, states_of(View(final_states)), false, target);
    return {out, final_states};
}

// ---- Gradients

struct CausalConv1dBackward {
    static constexpr const char* name = "causal_conv1d_backward";
    Given grad;
    OptionalTensor grad_states = {};
    CausalConv1d call;

    static void fields(auto& x, auto&& visit) {
        visit("grad", x.grad);
        visit("grad_states", x.grad_states);
        visit("x", x.call.x);
        visit("weight", x.call.weight);
        visit("bias", x.call.bias);
        visit("seq_idx", x.call.seq_idx);
        visit("initial_states", x.call.initial_states);
        visit("cu_seqlens", x.call.cu_seqlens);
        visit("silu", x.call.silu);
    }
};

struct PreparedCausalBackward {
    PreparedCausal forward;
    CausalBackwardArgs args{};
};

PreparedCausalBackward prepare_backward(const CausalConv1dBackward& call) {
    const Checks check{call.name};
    PreparedCausalBackward prepared{.forward = prepare_causal(call.call)};
    const PreparedCausal& forward = prepared.forward;
    const View &x = forward.x, grad(call.grad), grad_states = view_of(call.grad_states);
    check.shape("grad", grad, {x.size(0), x.size(1), x.size(2)}, "(B, D, L)");
    check.dtype("grad", grad, {forward.problem.io});
    check.device("grad", grad, x, "x");
    CausalBackwardArgs& args = prepared.args;
    if (grad_states.defined()) {
        check.shape("grad_states", grad_states, {forward.sequences, x.size(1), forward.args.taps - 1},
                    "(B or sequences, D, W − 1)");
        check.dtype("grad_states", grad_states, {forward.problem.io == DType::f64 ? DType::f64 : DType::f32});
        check.device("grad_states", grad_states, x, "x");
        args.grad_states = states_of(grad_states);
    }
    args.grad = tensor_of(grad);
    args.grad_vectors = has_vectors(forward, grad);
    args.forward = forward.args;
    return prepared;
}

// The gradients of x, weight, bias and initial_states; empty for an argument that was not passed.
std::tuple<Tensor, Tensor, Tensor, Tensor> run_backward(const CausalConv1dBackward& call) {
    PreparedCausalBackward prepared = prepare_backward(call);
    const CausalConv1d& x = call.call;
    PreparedCausal& forward = prepared.forward;
    const Tensor dx = empty_output(forward, x.x);
    CausalBackwardArgs& args = prepared.args;
    args.forward = forward.args;
    const Target target = target_of(call.name, forward.x);
    split_rows(forward.problem, args, jit::device_traits(target.ordinal));
    const int64_t D = forward.x.size(1), taps = forward.args.taps, rows = int64_t{args.forward.batches} * args.splits;
    const std::vector<int64_t> none{0}, weight_sums{rows, D, taps}, bias_sums{rows, D};
    const Tensor weights = new_tensor(x.x, weight_sums, ScalarType::Float),
                 biases = new_tensor(x.x, bias_sums, ScalarType::Float),
                 dinitial = new_tensor(x.x, x.initial_states ? forward.states_shape() : none, ScalarType::Float);
    args.dweight = static_cast<float*>(memory_of(weights));
    args.dbias = static_cast<float*>(memory_of(biases));
    const DeviceScope scope(forward.x.device_index);
    run_causal_backward(forward.problem, args, target);
    if (x.initial_states) CausalStatesBackward::run(forward.problem.io, {args, states_of(View(dinitial))}, target);
    const Tensor dweight = math::converted(math::sum(weights, 0), x.weight->scalar_type());
    const Tensor dbias = x.bias ? math::converted(math::sum(biases, 0), x.bias->scalar_type()) : new_tensor(x.weight, none);
    return {dx, dweight, dbias, dinitial};
}

// ---- From and to a pool

PreparedCausal prepare_prefill(const CausalConv1dPrefill& x) {
    const Checks check{CausalConv1d::name};
    PreparedCausal prepared = prepare_inputs(check, {x.x, x.weight, x.bias, x.seq_idx, x.cu_seqlens, x.silu});
    set_pool(check, prepared, {x.conv_state, x.state_indices, x.has_initial_state}, x.cu_seqlens.has_value());
    prepared.problem.sequences = true;
    check_grids(check, prepared);
    check.apart({{"conv_state", View(x.conv_state)}}, {{"x", prepared.x},
                                                       {"weight", View(x.weight)},
                                                       {"bias", view_of(x.bias)},
                                                       {"state_indices", view_of(x.state_indices)},
                                                       {"has_initial_state", view_of(x.has_initial_state)},
                                                       {"seq_idx", view_of(x.seq_idx)},
                                                       {"cu_seqlens", view_of(x.cu_seqlens)}});
    return prepared;
}

Tensor run_prefill(const CausalConv1dPrefill& x) {
    PreparedCausal prepared = prepare_prefill(x);
    const Tensor out = empty_output(prepared, x.x);
    const DeviceScope scope(prepared.x.device_index);
    const Target target = target_of(CausalConv1d::name, prepared.x);
    run_forward(prepared, target);
    write_states(prepared, prepared.args.sequences.initial, true, target);
    return out;
}

GDN_REGISTER(CausalConv1d, prepare_causal, run_causal)
GDN_REGISTER(CausalConv1dBackward, prepare_backward, run_backward)
GDN_REGISTER(CausalConv1dPrefill, prepare_prefill, run_prefill)

}  // namespace
}  // namespace gdn_cuda::conv

namespace gdn_cuda {

GDN_FUNCTION(causal_conv1d, CausalConv1d, conv::run_causal)
GDN_FUNCTION(causal_conv1d_prefill, CausalConv1dPrefill, conv::run_prefill)

}  // namespace gdn_cuda
