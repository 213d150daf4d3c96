// hyena_short: y = x2 * mask * (filter of x1 * v + bias), up to 32 taps.
#include "hyena_short.hpp"

#include <gdn_cuda/conv.hpp>
#include <vector>

#include "../../operators/operator.hpp"
#include "hyena_checks.hpp"

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

using HyenaShortCall = gdn_cuda::HyenaShort;
GDN_REGISTER(HyenaShortCall, prepare_hyena_short, run_hyena_short)

}  // namespace
}  // namespace gdn_cuda::conv

namespace gdn_cuda {

std::tuple<Tensor, Tensor> hyena_short(const HyenaShort& x) {
    require_given(x.name, x);
    return call<HyenaShort, conv::run_hyena_short>(x);
}

}  // namespace gdn_cuda
