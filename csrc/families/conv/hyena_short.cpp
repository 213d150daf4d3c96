// hyena_short: y = x2 * mask * (filter of x1 * v + bias), up to 32 taps, and its gradients.
#include "hyena_short.hpp"

#include <gdn_cuda/conv.hpp>
#include <vector>

#include "../../operators/operator.hpp"
#include "../../operators/torch_math.hpp"
#include "hyena_checks.hpp"
#include "hyena_short_backward.hpp"

namespace gdn_cuda::conv {
namespace {

struct PreparedHyenaShort {
    HyenaGiven given;
    HyenaShortProblem problem{};
    HyenaArgs args{};
};

PreparedHyenaShort prepare_hyena_short(const gdn_cuda::HyenaShort& x) {
    const Checks check{x.name};
    PreparedHyenaShort prepared{.given = check_hyena(check, x.x1, x.x2, x.v)};
    const HyenaGiven& given = prepared.given;
    HyenaArgs& args = prepared.args;
    args.filter = check_filter(check, given, View(x.weight), view_of(x.bias), kHyenaShortMostTaps);
    args.filter.gated_bias = x.gated_bias;
    args.mask = check_mask(check, given, view_of(x.padding_mask));
    args.initial = check_initial(check, given, view_of(x.initial_state), args.filter.taps - 1, "(B, D, K - 1)");
    given.fill(args);
    prepared.problem = {.io = given.io, .taps = args.filter.taps};
    check.grid("x1", hyena_blocks(given.x1.size(0) * given.x1.size(1), 1, kHyenaShortWarps));
    return prepared;
}

// y in the layout of x1, and the final state.
std::tuple<Tensor, Tensor> run_hyena_short(const gdn_cuda::HyenaShort& x) {
    PreparedHyenaShort prepared = prepare_hyena_short(x);
    const HyenaGiven& given = prepared.given;
    HyenaArgs& args = prepared.args;
    const auto [y, last] = given.new_outputs(args, x.x1, args.filter.taps - 1);
    const DeviceScope scope(given.x1.device_index);
    const Target target = target_of(x.name, given.x1);
    if (given.layout == Layout::channels)
        HyenaShortColumns::run(prepared.problem, args, target);
    else
        HyenaShort::run(prepared.problem, args, target);
    return {y, last};
}

// ---- Gradients

struct HyenaShortBackwardCall : HyenaBackwardCall<gdn_cuda::HyenaShort> {
    static constexpr const char* name = "hyena_short_backward";
};

using PreparedHyenaShortBackward = PreparedFilterBackward<PreparedHyenaShort, HyenaShortBackwardArgs>;

PreparedHyenaShortBackward prepare_hyena_short_backward(const HyenaShortBackwardCall& call) {
    return {Checks{call.name}, prepare_hyena_short(call.forward), call};
}

// The gradient of the weight from the segments' sums (rows, D, K).
Tensor weight_gradient(const Tensor& segment_sums, int64_t groups) {
    const int64_t channels = segment_sums.size(1), taps = segment_sums.size(2);
    const std::vector<int64_t> by_group{groups, groups == 0 ? 1 : channels / groups, taps}, like_weight{groups, 1, taps};
    const Tensor channel_sums = math::sum(segment_sums, 0);
    const Tensor group_sums = groups == channels ? channel_sums : math::sum(math::reshape(channel_sums, by_group), 1);
    return math::reshape(group_sums, like_weight);
}

// The gradients of x1, x2 and v in the layout of x1, and of weight, bias and the initial state in fp32; empty for an
// argument that was not passed.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> run_hyena_short_backward(const HyenaShortBackwardCall& call) {
    PreparedHyenaShortBackward prepared = prepare_hyena_short_backward(call);
    const gdn_cuda::HyenaShort& x = call.forward;
    const HyenaGiven& given = prepared.forward.given;
    const HyenaShortProblem& problem = prepared.forward.problem;
    HyenaShortBackwardArgs& args = prepared.args;
    const auto [dx1, dx2, dv] = prepared.new_gradients(x.x1);
    args.forward = prepared.forward.args;

    const Target target = target_of(call.name, given.x1);
    const jit::DeviceTraits& device = jit::device_traits(target.ordinal);
    const int64_t B = given.x1.size(0), D = given.x1.size(1), L = given.x1.size(2), taps = args.forward.filter.taps;
    const bool by_channels = given.layout == Layout::channels;
    const HyenaSplit split = by_channels ? HyenaShortColumnsBackward::split(problem, B, D, L, device)
                                         : HyenaShortBackward::split(problem, B, D, L, device);
    args.forward.segments = split.segments;
    args.forward.segment_tokens = split.segment_tokens;
    const std::vector<int64_t> none{0}, state_shape{B, D, taps - 1}, weights_shape{B * split.segments, D, taps},
        biases_shape{B * split.segments, D};
    const Tensor weights = new_tensor(x.x1, weights_shape, ScalarType::Float),
                 biases = new_tensor(x.x1, biases_shape, ScalarType::Float),
                 dinitial = new_tensor(x.x1, x.initial_state ? state_shape : none, ScalarType::Float);
    args.dweight = static_cast<float*>(memory_of(weights));
    args.dbias = static_cast<float*>(memory_of(biases));
    args.dinitial = x.initial_state ? static_cast<float*>(memory_of(dinitial)) : nullptr;
    const DeviceScope scope(given.x1.device_index);
    if (by_channels)
        HyenaShortColumnsBackward::run(problem, args, target);
    else
        HyenaShortBackward::run(problem, args, target);
    const Tensor dbias = x.bias ? math::sum(biases, 0) : new_tensor(biases, none);
    return {dx1, dx2, dv, weight_gradient(weights, x.weight->size(0)), dbias, dinitial};
}

using HyenaShortCall = gdn_cuda::HyenaShort;
GDN_REGISTER(HyenaShortCall, prepare_hyena_short, run_hyena_short)
GDN_REGISTER(HyenaShortBackwardCall, prepare_hyena_short_backward, run_hyena_short_backward)

}  // namespace
}  // namespace gdn_cuda::conv

namespace gdn_cuda {

GDN_FUNCTION(hyena_short, HyenaShort, conv::run_hyena_short)

}  // namespace gdn_cuda
