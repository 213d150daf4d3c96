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

// y in the layout of x1, and the state behind the last token.
std::tuple<Tensor, Tensor> run_hyena_short(const gdn_cuda::HyenaShort& x) {
    PreparedHyenaShort prepared = prepare_hyena_short(x);
    const HyenaGiven& given = prepared.given;
    HyenaArgs& args = prepared.args;
    const Tensor y = empty_rows(x.x1, given.layout);
    const std::vector<int64_t> of_state = {given.x1.size(0), given.x1.size(1), args.filter.taps - 1};
    const Tensor last = torch::stable::new_empty(x.x1, of_state, ScalarType::Float);
    given.fill_output(args, y);
    args.last = static_cast<float*>(memory_of(last));
    const DeviceScope scope(given.x1.device_index);
    const Target target = target_of(x.name, given.x1);
    if (given.layout == Layout::channels)
        HyenaShortColumns::run(prepared.problem, args, target);
    else
        HyenaShort::run(prepared.problem, args, target);
    return {y, last};
}

// ---- Gradients

struct HyenaShortBackwardCall {
    static constexpr const char* name = "hyena_short_backward";
    Given grad, grad_state;
    gdn_cuda::HyenaShort forward;

    static void fields(auto& x, auto&& visit) {
        visit("grad", x.grad);
        visit("grad_state", x.grad_state);
        gdn_cuda::HyenaShort::fields(x.forward, visit);
    }
};

struct PreparedHyenaShortBackward {
    PreparedHyenaShort forward;
    View grad;
    HyenaShortBackwardArgs args{};
};

PreparedHyenaShortBackward prepare_hyena_short_backward(const HyenaShortBackwardCall& call) {
    const Checks check{call.name};
    PreparedHyenaShortBackward prepared{.forward = prepare_hyena_short(call.forward), .grad = View(call.grad)};
    const HyenaGiven& given = prepared.forward.given;
    const View &grad = prepared.grad, grad_state(call.grad_state);
    check.shape("grad", grad, {given.x1.size(0), given.x1.size(1), given.x1.size(2)}, "(B, D, L)");
    check.dtype("grad", grad, {given.io});
    check.device("grad", grad, given.x1, "x1");
    const int64_t length = prepared.forward.args.filter.taps - 1;
    check.shape("grad_state", grad_state, {given.x1.size(0), given.x1.size(1), length}, "(B, D, K - 1)");
    check.dtype("grad_state", grad_state, {given.wide});
    check.device("grad_state", grad_state, given.x1, "x1");
    HyenaShortBackwardArgs& args = prepared.args;
    args.of_last = {tagged(grad_state), grad_state.stride(0), grad_state.stride(1), grad_state.stride(2)};
    args.of_y = hyena_tensor(grad);
    return prepared;
}

// The sums of shares, (rows, D, K), added up, and those of a group's channels.
Tensor gradient_of_weight(const Tensor& shares, int64_t groups) {
    const int64_t channels = shares.size(1), taps = shares.size(2);
    const std::vector<int64_t> by_group{groups, groups == 0 ? 1 : channels / groups, taps}, like_weight{groups, 1, taps};
    const Tensor of_channels = math::sum(shares, 0);
    const Tensor of_groups = groups == channels ? of_channels : math::sum(math::reshape(of_channels, by_group), 1);
    return math::reshape(of_groups, like_weight);
}

// The gradients of x1, x2 and v in the layout of x1, and of weight, bias and the initial state in fp32; those of what is not
// given are empty.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> run_hyena_short_backward(const HyenaShortBackwardCall& call) {
    PreparedHyenaShortBackward prepared = prepare_hyena_short_backward(call);
    const gdn_cuda::HyenaShort& x = call.forward;
    const HyenaGiven& given = prepared.forward.given;
    const HyenaShortProblem& problem = prepared.forward.problem;
    HyenaShortBackwardArgs& args = prepared.args;
    args.forward = prepared.forward.args;
    const Tensor of_x1 = empty_rows(x.x1, given.layout), of_x2 = empty_rows(x.x1, given.layout),
                 of_v = empty_rows(x.x1, given.layout);
    args.of_x1 = hyena_tensor(View(of_x1));
    args.of_x2 = hyena_tensor(View(of_x2));
    args.of_v = hyena_tensor(View(of_v));
    const View views[] = {given.x1, given.x2, given.v, prepared.grad, View(of_x1), View(of_x2), View(of_v)};
    args.forward.vectors = std::ranges::all_of(views, [&](const View& view) { return has_vectors(view, given.layout); });

    const Target target = target_of(call.name, given.x1);
    const jit::DeviceTraits& device = jit::device_traits(target.ordinal);
    const int64_t B = given.x1.size(0), D = given.x1.size(1), L = given.x1.size(2), taps = args.forward.filter.taps;
    const bool by_channels = given.layout == Layout::channels;
    const HyenaCut cut = by_channels ? HyenaShortColumnsBackward::cut(problem, B, D, L, device)
                                     : HyenaShortBackward::cut(problem, B, D, L, device);
    args.forward.segments = cut.segments;
    args.forward.segment_tokens = cut.segment_tokens;
    const std::vector<int64_t> none{0}, of_state{B, D, taps - 1}, of_weights{B * cut.segments, D, taps},
        of_biases{B * cut.segments, D};
    const Tensor weights = torch::stable::new_empty(x.x1, of_weights, ScalarType::Float),
                 biases = torch::stable::new_empty(x.x1, of_biases, ScalarType::Float),
                 of_initial = torch::stable::new_empty(x.x1, x.initial_state ? of_state : none, ScalarType::Float);
    args.of_weight = static_cast<float*>(memory_of(weights));
    args.of_bias = static_cast<float*>(memory_of(biases));
    args.of_initial = x.initial_state ? static_cast<float*>(memory_of(of_initial)) : nullptr;
    const DeviceScope scope(given.x1.device_index);
    if (by_channels)
        HyenaShortColumnsBackward::run(problem, args, target);
    else
        HyenaShortBackward::run(problem, args, target);
    const Tensor of_bias = x.bias ? math::sum(biases, 0) : torch::stable::new_empty(biases, none);
    return {of_x1, of_x2, of_v, gradient_of_weight(weights, x.weight->size(0)), of_bias, of_initial};
}

using HyenaShortCall = gdn_cuda::HyenaShort;
GDN_REGISTER(HyenaShortCall, prepare_hyena_short, run_hyena_short)
GDN_REGISTER(HyenaShortBackwardCall, prepare_hyena_short_backward, run_hyena_short_backward)

}  // namespace
}  // namespace gdn_cuda::conv

namespace gdn_cuda {

std::tuple<Tensor, Tensor> hyena_short(const HyenaShort& x) {
    require_given(x.name, x);
    return call<HyenaShort, conv::run_hyena_short>(x);
}

}  // namespace gdn_cuda
