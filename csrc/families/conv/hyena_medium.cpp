// hyena_medium: y = x2 * mask * (h * u + D u) with u = x1 * v, up to 1024 taps, and its gradients.
#include "hyena_medium.hpp"

#include <gdn_cuda/conv.hpp>
#include <vector>

#include "../../operators/operator.hpp"
#include "../../operators/torch_math.hpp"
#include "hyena_checks.hpp"
#include "hyena_medium_backward.hpp"

namespace gdn_cuda::conv {
namespace {

using HyenaMediumCall = gdn_cuda::HyenaMedium;

struct PreparedHyenaMedium {
    HyenaGiven given;
    HyenaMediumProblem problem{};
    HyenaArgs args{};
};

PreparedHyenaMedium prepare_hyena_medium(const HyenaMediumCall& x) {
    const Checks check{x.name};
    PreparedHyenaMedium prepared{.given = check_hyena(check, x.x1, x.x2, x.v)};
    const HyenaGiven& given = prepared.given;
    HyenaArgs& args = prepared.args;
    args.filter = check_filter(check, given, View(x.weight), View(x.bias), kHyenaMediumMostTaps);
    args.mask = check_mask(check, given, view_of(x.padding_mask));
    args.initial = check_initial(check, given, view_of(x.initial_state), args.filter.taps - 1, "(B, D, K - 1)");
    given.fill(args);
    prepared.problem = {.io = given.io, .taps = args.filter.taps, .columns = false};
    check.grid("x1", hyena_blocks(given.x1.size(0) * given.x1.size(1), 1, 1));
    return prepared;
}

// What args.vectors says of the tensors in their layout becomes that of rows of tokens or of channels.
void set_layout(PreparedHyenaMedium& prepared) {
    HyenaArgs& args = prepared.args;
    const bool by_tokens = prepared.given.layout == Layout::tokens;
    const bool whole_vectors = args.channels * bytes_of(prepared.given.io) % 16 == 0;  // one token has no stride that says so
    prepared.problem.columns = args.vectors && !by_tokens && whole_vectors;
    args.vectors &= by_tokens || prepared.problem.columns;
}

// y in the layout of x1, and the state behind the last token.
std::tuple<Tensor, Tensor> run_hyena_medium(const HyenaMediumCall& x) {
    PreparedHyenaMedium prepared = prepare_hyena_medium(x);
    const HyenaGiven& given = prepared.given;
    HyenaArgs& args = prepared.args;
    const Tensor y = empty_rows(x.x1, given.layout);
    const std::vector<int64_t> of_state = {given.x1.size(0), given.x1.size(1), args.filter.taps - 1};
    const Tensor last = torch::stable::new_empty(x.x1, of_state, ScalarType::Float);
    given.fill_output(args, y);
    set_layout(prepared);
    args.last = static_cast<float*>(memory_of(last));
    const DeviceScope scope(given.x1.device_index);
    HyenaMedium::run(prepared.problem, args, target_of(x.name, given.x1));
    return {y, last};
}

// ---- Gradients

struct HyenaMediumBackwardCall {
    static constexpr const char* name = "hyena_medium_backward";
    Given grad, grad_state;
    HyenaMediumCall forward;

    static void fields(auto& x, auto&& visit) {
        visit("grad", x.grad);
        visit("grad_state", x.grad_state);
        HyenaMediumCall::fields(x.forward, visit);
    }
};

struct PreparedHyenaMediumBackward {
    PreparedHyenaMedium forward;
    View grad;
    HyenaMediumBackwardArgs args{};
};

PreparedHyenaMediumBackward prepare_hyena_medium_backward(const HyenaMediumBackwardCall& call) {
    const Checks check{call.name};
    PreparedHyenaMediumBackward prepared{.forward = prepare_hyena_medium(call.forward), .grad = View(call.grad)};
    const HyenaGiven& given = prepared.forward.given;
    const int64_t B = given.x1.size(0), D = given.x1.size(1), length = prepared.forward.args.filter.taps - 1;
    const View &grad = prepared.grad, grad_state(call.grad_state);
    check.shape("grad", grad, {B, D, given.x1.size(2)}, "(B, D, L)");
    check.dtype("grad", grad, {given.io});
    check.device("grad", grad, given.x1, "x1");
    check.shape("grad_state", grad_state, {B, D, length}, "(B, D, K - 1)");
    check.dtype("grad_state", grad_state, {given.wide});
    check.device("grad_state", grad_state, given.x1, "x1");
    prepared.args.of_y = hyena_tensor(grad);
    prepared.args.of_last = {tagged(grad_state), grad_state.stride(0), grad_state.stride(1), grad_state.stride(2)};
    return prepared;
}

// Of shares' sums, (rows, D, K): those of a group's channels, and of a bias, which meets what the first tap meets.
std::tuple<Tensor, Tensor> sums_of_shares(const Tensor& shares, int64_t groups) {
    const int64_t channels = shares.size(1), taps = shares.size(2);
    const std::vector<int64_t> by_group{groups, groups == 0 ? 1 : channels / groups, taps}, like_weight{groups, 1, taps},
        like_bias{channels};
    const Tensor of_channels = math::sum(shares, 0), of_groups = math::sum(math::reshape(of_channels, by_group), 1);
    return {math::reshape(of_groups, like_weight), math::sum(math::narrow(of_channels, 1, 0, 1), 1)};
}

// The gradients of x1, x2 and v in the layout of x1, and of weight, bias and the initial state in fp32, the last empty where
// that is not given.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> run_hyena_medium_backward(const HyenaMediumBackwardCall& call) {
    PreparedHyenaMediumBackward prepared = prepare_hyena_medium_backward(call);
    const HyenaMediumCall& x = call.forward;
    const HyenaGiven& given = prepared.forward.given;
    const Tensor of_x1 = empty_rows(x.x1, given.layout), of_x2 = empty_rows(x.x1, given.layout),
                 of_v = empty_rows(x.x1, given.layout);
    HyenaMediumBackwardArgs& args = prepared.args;
    args.of_x1 = hyena_tensor(View(of_x1));
    args.of_x2 = hyena_tensor(View(of_x2));
    args.of_v = hyena_tensor(View(of_v));
    bool& vectors = prepared.forward.args.vectors = true;
    for (const View& each : {given.x1, given.x2, given.v, prepared.grad, View(of_x1), View(of_x2), View(of_v)})
        vectors &= has_vectors(each, given.layout);
    set_layout(prepared.forward);
    args.forward = prepared.forward.args;

    const Target target = target_of(call.name, given.x1);
    const jit::DeviceTraits& device = jit::device_traits(target.ordinal);
    const int64_t B = given.x1.size(0), D = given.x1.size(1), taps = args.forward.filter.taps;
    const HyenaMediumBackwardConfig config = HyenaMediumBackward::config_on(prepared.forward.problem, device);
    args.forward.vectors &= config.columns || !prepared.forward.problem.columns;
    const HyenaCut cut = HyenaMediumBackward::cut(config, B, D, given.x1.size(2), args.forward.filter.taps, device);
    args.forward.segments = cut.segments;
    args.forward.segment_tokens = cut.segment_tokens;
    const std::vector<int64_t> none{0}, of_state{B, D, taps - 1}, of_shares{B * cut.segments, D, taps};
    const Tensor shares = torch::stable::new_empty(x.x1, of_shares, ScalarType::Float),
                 of_initial = torch::stable::new_empty(x.x1, x.initial_state ? of_state : none, ScalarType::Float);
    args.of_taps = static_cast<float*>(memory_of(shares));
    args.of_initial = x.initial_state ? static_cast<float*>(memory_of(of_initial)) : nullptr;
    const DeviceScope scope(given.x1.device_index);
    HyenaMediumBackward::run(config, args, target);
    const auto [of_weight, of_bias] = sums_of_shares(shares, x.weight->size(0));
    return {of_x1, of_x2, of_v, of_weight, of_bias, of_initial};
}

GDN_REGISTER(HyenaMediumCall, prepare_hyena_medium, run_hyena_medium)
GDN_REGISTER(HyenaMediumBackwardCall, prepare_hyena_medium_backward, run_hyena_medium_backward)

}  // namespace
}  // namespace gdn_cuda::conv

namespace gdn_cuda {

std::tuple<Tensor, Tensor> hyena_medium(const HyenaMedium& x) {
    require_given(x.name, x);
    return call<HyenaMedium, conv::run_hyena_medium>(x);
}

}  // namespace gdn_cuda
