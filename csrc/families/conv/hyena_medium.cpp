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

// On entry args.vectors covers the tensors in their own layout; sets problem.columns if they are rows of whole vectors of
// channels.
void set_layout(PreparedHyenaMedium& prepared) {
    HyenaArgs& args = prepared.args;
    const bool by_tokens = prepared.given.layout == Layout::tokens;
    const bool whole_vectors =
        args.channels * bytes_of(prepared.given.io) % 16 == 0;  // the strides of a single token do not show it
    prepared.problem.columns = args.vectors && !by_tokens && whole_vectors;
    args.vectors &= by_tokens || prepared.problem.columns;
}

// y in the layout of x1, and the final state.
std::tuple<Tensor, Tensor> run_hyena_medium(const HyenaMediumCall& x) {
    PreparedHyenaMedium prepared = prepare_hyena_medium(x);
    const HyenaGiven& given = prepared.given;
    HyenaArgs& args = prepared.args;
    const auto [y, last] = given.new_outputs(args, x.x1, args.filter.taps - 1);
    set_layout(prepared);
    const DeviceScope scope(given.x1.device_index);
    HyenaMedium::run(prepared.problem, args, target_of(x.name, given.x1));
    return {y, last};
}

// ---- Gradients

struct HyenaMediumBackwardCall : HyenaBackwardCall<HyenaMediumCall> {
    static constexpr const char* name = "hyena_medium_backward";
};

using PreparedHyenaMediumBackward = PreparedFilterBackward<PreparedHyenaMedium, HyenaMediumBackwardArgs>;

PreparedHyenaMediumBackward prepare_hyena_medium_backward(const HyenaMediumBackwardCall& call) {
    return {Checks{call.name}, prepare_hyena_medium(call.forward), call};
}

// The gradients of weight and bias from the segments' sums (rows, D, K). The bias multiplies the same input as the first
// tap.
std::tuple<Tensor, Tensor> filter_gradients(const Tensor& segment_sums, int64_t groups) {
    const int64_t channels = segment_sums.size(1), taps = segment_sums.size(2);
    const std::vector<int64_t> by_group{groups, groups == 0 ? 1 : channels / groups, taps}, like_weight{groups, 1, taps},
        like_bias{channels};
    const Tensor channel_sums = math::sum(segment_sums, 0), group_sums = math::sum(math::reshape(channel_sums, by_group), 1);
    return {math::reshape(group_sums, like_weight), math::sum(math::narrow(channel_sums, 1, 0, 1), 1)};
}

// The gradients of x1, x2 and v in the layout of x1, and of weight, bias and the initial state in fp32; the last is empty
// without an initial state.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> run_hyena_medium_backward(const HyenaMediumBackwardCall& call) {
    PreparedHyenaMediumBackward prepared = prepare_hyena_medium_backward(call);
    const HyenaMediumCall& x = call.forward;
    const HyenaGiven& given = prepared.forward.given;
    HyenaMediumBackwardArgs& args = prepared.args;
    const auto [dx1, dx2, dv] = prepared.new_gradients(x.x1);
    set_layout(prepared.forward);
    args.forward = prepared.forward.args;

    const Target target = target_of(call.name, given.x1);
    const jit::DeviceTraits& device = jit::device_traits(target.ordinal);
    const int64_t B = given.x1.size(0), D = given.x1.size(1), taps = args.forward.filter.taps;
    const HyenaMediumBackwardConfig config = HyenaMediumBackward::config_on(prepared.forward.problem, device);
    args.forward.vectors &= config.columns || !prepared.forward.problem.columns;
    const HyenaSplit split = HyenaMediumBackward::split(config, B, D, given.x1.size(2), args.forward.filter.taps, device);
    args.forward.segments = split.segments;
    args.forward.segment_tokens = split.segment_tokens;
    const std::vector<int64_t> none{0}, state_shape{B, D, taps - 1}, sums_shape{B * split.segments, D, taps};
    const Tensor segment_sums = new_tensor(x.x1, sums_shape, ScalarType::Float),
                 dinitial = new_tensor(x.x1, x.initial_state ? state_shape : none, ScalarType::Float);
    args.dtaps = static_cast<float*>(memory_of(segment_sums));
    args.dinitial = x.initial_state ? static_cast<float*>(memory_of(dinitial)) : nullptr;
    const DeviceScope scope(given.x1.device_index);
    HyenaMediumBackward::run(config, args, target);
    const auto [dweight, dbias] = filter_gradients(segment_sums, x.weight->size(0));
    return {dx1, dx2, dv, dweight, dbias, dinitial};
}

GDN_REGISTER(HyenaMediumCall, prepare_hyena_medium, run_hyena_medium)
GDN_REGISTER(HyenaMediumBackwardCall, prepare_hyena_medium_backward, run_hyena_medium_backward)

}  // namespace
}  // namespace gdn_cuda::conv

namespace gdn_cuda {

GDN_FUNCTION(hyena_medium, HyenaMedium, conv::run_hyena_medium)

}  // namespace gdn_cuda
