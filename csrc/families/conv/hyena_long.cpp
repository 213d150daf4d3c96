// hyena_long and its gradients: y = x2 * (h * u + D u) with u = x1 * v, and h a sum of up to 64 exponentials.
#include "hyena_long.hpp"

#include <torch/csrc/stable/ops.h>

#include <gdn_cuda/conv.hpp>
#include <utility>
#include <vector>

#include "../../operators/operator.hpp"
#include "../../operators/torch_math.hpp"
#include "../common/transposed.hpp"
#include "hyena_checks.hpp"
#include "hyena_long_backward.hpp"
#include "hyena_long_summary.hpp"

namespace gdn_cuda::conv {
namespace {

using HyenaLongCall = gdn_cuda::HyenaLong;
struct HyenaLongBackwardCall : HyenaBackwardCall<HyenaLongCall> {
    static constexpr const char* name = "hyena_long_backward";
};

struct PreparedHyenaLong {
    HyenaGiven given;
    HyenaLongProblem problem{};
    HyenaLongArgs args{};

    // On entry args.vectors covers the tensors in their own layout; on return it is about rows of tokens, and
    // problem.columns about rows of channels.
    void set_layout(HyenaLongArgs& args) {
        const bool whole = args.channels * bytes_of(given.io) % 16 == 0;  // the strides of a single token do not show it
        problem.columns = args.vectors && whole && given.layout == Layout::channels;
        args.vectors &= given.layout == Layout::tokens;
    }
    std::vector<int64_t> state_shape() const { return {given.x1.size(0), given.x1.size(1), problem.states}; }
};

PreparedHyenaLong prepare(const Checks& check, const HyenaLongCall& x) {
    PreparedHyenaLong prepared{.given = check_hyena(check, x.x1, x.x2, x.v)};
    const HyenaGiven& given = prepared.given;
    const View residues(x.residues), log_poles(x.log_poles), bias(x.bias);
    HyenaLongArgs& args = prepared.args;
    check.rank("residues", residues, 2, "(groups, S)");
    check.dtype("residues", residues, {given.io, given.wide});
    check.device("residues", residues, given.x1, "x1");
    const int64_t channels = given.x1.size(1), rows = residues.size(0), states = residues.size(1);
    args.channels_a_row = check_groups(check, "residues", residues, channels);
    GDN_REQUIRE(check, states >= 1 && states <= kHyenaMostStates, "residues", fmt::format("1 to {} states", kHyenaMostStates),
                shape_text(residues));
    if (log_poles.rank == 3)
        check.shape("log_poles", log_poles, {rows, states, 1}, "(groups, S, 1)");
    else
        check.shape("log_poles", log_poles, {rows, states}, "(groups, S)");
    check.dtype("log_poles", log_poles, {given.io, given.wide});
    check.device("log_poles", log_poles, given.x1, "x1");
    check.shape("bias", bias, {channels}, "(D,)");
    check.dtype("bias", bias, {given.io, given.wide});
    check.device("bias", bias, given.x1, "x1");
    args.initial = check_initial(check, given, view_of(x.initial_state), states, "(B, D, S)");
    args.residues = tagged(residues);
    args.log_poles = tagged(log_poles);
    args.bias = tagged(bias);
    args.residue_row = residues.stride(0);
    args.residue_state = residues.stride(1);
    args.pole_row = log_poles.stride(0);
    args.pole_state = log_poles.stride(1);
    args.bias_channel = bias.stride(0);
    args.states = static_cast<int>(states);
    given.fill(args);
    prepared.problem = {.io = given.io, .states = states, .columns = false};
    check.grid("x1", hyena_blocks(given.x1.size(0) * channels, 1, 1));
    return prepared;
}

PreparedHyenaLong prepare_hyena_long(const HyenaLongCall& x) {
    return prepare({x.name}, x);
}

// y in the layout of x1, and the final state.
std::tuple<Tensor, Tensor> run_hyena_long(const HyenaLongCall& x) {
    PreparedHyenaLong prepared = prepare_hyena_long(x);
    const HyenaGiven& given = prepared.given;
    HyenaLongArgs& args = prepared.args;
    const Target target = target_of(x.name, given.x1);
    const i64 rows = i64{args.batches} * args.channels;
    const HyenaSplit split = hyena_long_split(rows, args.tokens, jit::device_traits(target.ordinal));
    args.segments = split.segments;
    args.segment_tokens = split.segment_tokens;
    const auto [y, last] = given.new_outputs(args, x.x1, args.states);
    const std::vector<int64_t> added_shape = {rows, split.segments - 1, args.states};
    const Tensor added = new_tensor(x.x1, added_shape, ScalarType::Float);
    prepared.set_layout(args);
    args.added = static_cast<float*>(memory_of(added));
    const DeviceScope scope(given.x1.device_index);
    HyenaLong::run(prepared.problem, args, target);
    return {y, last};
}

// ---- Gradients

struct PreparedHyenaLongBackward {
    PreparedHyenaLong forward;
    View grad;
    HyenaLongBackwardArgs args{};
};

PreparedHyenaLongBackward prepare_backward(const Checks& check, const HyenaBackwardCall<HyenaLongCall>& x) {
    PreparedHyenaLongBackward prepared{.forward = prepare(check, x.forward), .grad = View(x.grad)};
    prepared.args.grad_state = check_gradients(check, prepared.forward.given, prepared.grad, View(x.grad_state),
                                               prepared.forward.problem.states, "(B, D, S)");
    prepared.args.grad = hyena_tensor(prepared.grad);
    return prepared;
}
PreparedHyenaLongBackward prepare_hyena_long_backward(const HyenaLongBackwardCall& x) {
    return prepare_backward({x.name}, x);
}

std::vector<int64_t> sizes_of(const Tensor& x) {
    const View view(x);
    return {view.sizes, view.sizes + view.rank};
}

// The gradients of x1, x2 and v, in the layout of x1, and in fp32 those of residues, log_poles, bias and initial_state.
using HyenaLongGradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;
HyenaLongGradients run_hyena_long_backward(const HyenaLongBackwardCall& x);

// Computes the gradients from copies whose tokens are contiguous, which reads and writes each tensor once more.
HyenaLongGradients gradients_by_copies(HyenaLongBackwardCall x, const Target& target) {
    const DeviceScope scope(target.ordinal);
    for (Given* rows : {&x.grad, &x.forward.x1, &x.forward.x2, &x.forward.v})
        *rows = common::transposed(*rows, Layout::tokens, target);
    const auto [dx1, dx2, dv, dresidues, dlog_poles, dbias, dinitial] = run_hyena_long_backward(x);
    const auto copy = [&](const Tensor& rows) { return common::transposed(rows, Layout::channels, target); };
    return {copy(dx1), copy(dx2), copy(dv), dresidues, dlog_poles, dbias, dinitial};
}

HyenaLongGradients run_hyena_long_backward(const HyenaLongBackwardCall& x) {
    PreparedHyenaLongBackward prepared = prepare_hyena_long_backward(x);
    const HyenaGiven& given = prepared.forward.given;
    HyenaLongBackwardArgs& args = prepared.args;
    HyenaLongArgs& forward = prepared.forward.args;
    const Target target = target_of(x.name, given.x1);
    const Tensor& like = x.forward.x1;
    const auto empty = [&](const std::vector<int64_t>& shape) { return new_tensor(like, shape, ScalarType::Float); };
    const auto floats = [](const Tensor& tensor) { return static_cast<float*>(memory_of(tensor)); };

    const i64 B = forward.batches, D = forward.channels, S = forward.states, rows = B * D;
    const HyenaSplit split = hyena_long_split(rows, forward.tokens, jit::device_traits(target.ordinal));
    forward.segments = split.segments;
    forward.segment_tokens = split.segment_tokens;
    forward.vectors = true;
    for (const View* each : {&given.x1, &given.x2, &given.v, &std::as_const(prepared.grad)})
        forward.vectors = forward.vectors && has_vectors(*each, given.layout);
    prepared.forward.set_layout(forward);
    HyenaLongProblem& problem = prepared.forward.problem;
    const bool columns = HyenaLongBackward::takes_columns(problem, jit::device_traits(target.ordinal));
    // A single token has both layouts.
    if (problem.columns && !columns && forward.tokens > 1) return gradients_by_copies(x, target);
    problem.columns = columns;

    bool& vectors = forward.vectors;
    const Tensor dx1 = empty_gradient(given, like, args.dx1, vectors), dx2 = empty_gradient(given, like, args.dx2, vectors),
                 dv = empty_gradient(given, like, args.dv, vectors);
    const bool continued = x.forward.initial_state.has_value();
    const Tensor dinitial = empty(continued ? prepared.forward.state_shape() : std::vector<int64_t>{0});
    const Tensor dpoles = empty({B, D, split.segments, 2 * S}), bias_sums = empty({B, D, split.segments});
    const Tensor states = empty({rows, hyena_long_tiles(forward.tokens), S});
    const Tensor added = empty({2, rows, split.segments, S});
    args.dinitial = continued ? floats(dinitial) : nullptr;
    args.dpoles = floats(dpoles);
    args.dbias = floats(bias_sums);
    args.states = floats(states);
    args.added = floats(added);
    args.added_back = args.added + rows * split.segments * S;
    args.forward = forward;
    {
        const DeviceScope scope(given.x1.device_index);
        HyenaLongStates::run(problem, args, target);
        HyenaLongBackward::run(problem, args, target);
    }
    const Tensor dbias = math::sum(math::sum(bias_sums, 2), 0);
    const int64_t groups = View(x.forward.residues).size(0);
    const std::vector<int64_t> parameter_shape{groups, S};
    if (rows == 0) {
        const Tensor zeros = math::zeros(bias_sums, parameter_shape);
        return {dx1, dx2, dv, zeros, math::zeros(bias_sums, sizes_of(x.forward.log_poles)), dbias, dinitial};
    }
    // Sums over segments and the channels of a group, then over the batch.
    const Tensor by_groups = math::reshape(dpoles, {B, groups, D / groups * split.segments, 2 * S});
    const Tensor both = math::sum(math::sum(by_groups, 2), 0);
    const Tensor dresidues = torch::stable::clone(math::narrow(both, 1, 0, S));
    const Tensor dlog_poles = math::reshape(torch::stable::clone(math::narrow(both, 1, S, S)), sizes_of(x.forward.log_poles));
    return {dx1, dx2, dv, dresidues, dlog_poles, dbias, dinitial};
}

// ---- What ranks that share a sequence tell each other of its parts

// The state after the tokens.
struct HyenaLongSummaryCall {
    static constexpr const char* name = "hyena_long_summary";
    HyenaLongCall forward;

    GDN_FIELDS(forward)
};
// The gradient of the state before the tokens.
struct HyenaLongSummaryBackwardCall : HyenaBackwardCall<HyenaLongCall> {
    static constexpr const char* name = "hyena_long_summary_backward";
};

// Splits the tokens, and returns what the segments will add.
Tensor new_additions(HyenaLongArgs& args, const Tensor& like, i64 tokens, const Target& target) {
    const i64 rows = i64{args.batches} * args.channels;
    const HyenaSplit split = HyenaLongSummary::split(rows, tokens, jit::device_traits(target.ordinal).multiprocessors);
    args.segments = tokens > 0 ? split.segments : 0;
    args.segment_tokens = split.segment_tokens;
    const std::vector<int64_t> shape = {rows, args.segments, args.states};
    return new_tensor(like, shape, ScalarType::Float);
}
// `args` has all tokens; `covered`: how many the segments have. `gradient`: in reverse, of the last states.
Tensor summed(const PreparedHyenaLong& prepared, const HyenaLongArgs& args, const Tensor& added, int covered,
              const HyenaInitial* gradient, const Tensor& like, const Target& target) {
    const Tensor result = new_tensor(like, prepared.state_shape(), ScalarType::Float);
    if (i64{args.batches} * args.channels > 0)
        HyenaLongSummary::run(prepared.given.io, gradient != nullptr,
                              {.forward = args,
                               .first = gradient != nullptr ? *gradient : args.initial,
                               .added = static_cast<const float*>(memory_of(added)),
                               .result = static_cast<float*>(memory_of(result)),
                               .covered = covered},
                              target);
    return result;
}

PreparedHyenaLong prepare_summary(const HyenaLongSummaryCall& x) {
    return prepare({x.name}, x.forward);
}
Tensor run_summary(const HyenaLongSummaryCall& x) {
    PreparedHyenaLong prepared = prepare_summary(x);
    const HyenaGiven& given = prepared.given;
    HyenaLongArgs args = prepared.args;
    const Target target = target_of(x.name, given.x1);
    const DeviceScope scope(given.x1.device_index);
    const int all = args.tokens, covered = all / kTileTokens * kTileTokens;
    const Tensor added = new_additions(args, x.forward.x1, covered, target);
    args.vectors = has_vectors(given.x1, given.layout) && has_vectors(given.v, given.layout);
    prepared.set_layout(args);
    args.added = static_cast<float*>(memory_of(added));
    args.tokens = covered;
    args.until_result = all - covered;
    if (args.segments > 0 && args.batches > 0 && args.channels > 0) HyenaLong::launch_one(prepared.problem, true, args, target);
    args.tokens = all;
    return summed(prepared, args, added, covered, nullptr, x.forward.x1, target);
}

PreparedHyenaLongBackward prepare_summary_backward(const HyenaLongSummaryBackwardCall& x) {
    return prepare_backward({x.name}, x);
}
Tensor run_summary_backward(const HyenaLongSummaryBackwardCall& x) {
    PreparedHyenaLongBackward prepared = prepare_summary_backward(x);
    PreparedHyenaLong& forward = prepared.forward;
    const HyenaGiven& given = forward.given;
    HyenaLongArgs& args = forward.args;
    const Target target = target_of(x.name, given.x1);
    const DeviceScope scope(given.x1.device_index);
    args.vectors = has_vectors(given.x2, given.layout) && has_vectors(prepared.grad, given.layout);
    forward.set_layout(args);
    const bool columns = HyenaLongBackward::takes_columns(forward.problem, jit::device_traits(target.ordinal));
    if (forward.problem.columns && !columns && args.tokens > 1) {  // a single token has both layouts
        HyenaLongSummaryBackwardCall copies = x;
        copies.grad = common::transposed(x.grad, Layout::tokens, target);
        copies.forward.x2 = common::transposed(x.forward.x2, Layout::tokens, target);
        copies.forward.x1 = copies.forward.v = copies.forward.x2;  // nothing reads them
        return run_summary_backward(copies);
    }
    forward.problem.columns = columns;
    const Tensor added = new_additions(args, x.forward.x1, args.tokens, target);
    prepared.args.added_back = static_cast<float*>(memory_of(added));
    args.until_result = 0;
    prepared.args.forward = args;
    if (args.segments > 0 && args.batches > 0 && args.channels > 0)
        HyenaLongStates::launch_one(forward.problem, true, prepared.args, target);
    return summed(forward, args, added, args.tokens, &prepared.args.grad_state, x.forward.x1, target);
}

GDN_REGISTER(HyenaLongCall, prepare_hyena_long, run_hyena_long)
GDN_REGISTER(HyenaLongBackwardCall, prepare_hyena_long_backward, run_hyena_long_backward)
GDN_REGISTER(HyenaLongSummaryCall, prepare_summary, run_summary)
GDN_REGISTER(HyenaLongSummaryBackwardCall, prepare_summary_backward, run_summary_backward)

}  // namespace
}  // namespace gdn_cuda::conv

namespace gdn_cuda {

GDN_FUNCTION(hyena_long, HyenaLong, conv::run_hyena_long)

}  // namespace gdn_cuda
