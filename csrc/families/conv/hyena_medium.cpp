// hyena_medium: y = x2 * mask * (h * u + D u) with u = x1 * v, up to 1024 taps.
#include "hyena_medium.hpp"

#include <gdn_cuda/conv.hpp>
#include <vector>

#include "../../operators/operator.hpp"
#include "hyena_checks.hpp"

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

// y in the layout of x1, and the state behind the last token.
std::tuple<Tensor, Tensor> run_hyena_medium(const HyenaMediumCall& x) {
    PreparedHyenaMedium prepared = prepare_hyena_medium(x);
    const HyenaGiven& given = prepared.given;
    HyenaArgs& args = prepared.args;
    const Tensor y = empty_rows(x.x1, given.layout);
    const std::vector<int64_t> of_state = {given.x1.size(0), given.x1.size(1), args.filter.taps - 1};
    const Tensor last = torch::stable::new_empty(x.x1, of_state, ScalarType::Float);
    given.fill_output(args, y);
    const bool whole_vectors = args.channels * bytes_of(given.io) % 16 == 0;  // one token alone has no stride that says so
    prepared.problem.columns = args.vectors && whole_vectors && given.layout == Layout::channels;
    args.vectors &= given.layout == Layout::tokens || prepared.problem.columns;
    args.last = static_cast<float*>(memory_of(last));
    const DeviceScope scope(given.x1.device_index);
    HyenaMedium::run(prepared.problem, args, target_of(x.name, given.x1));
    return {y, last};
}

GDN_REGISTER(HyenaMediumCall, prepare_hyena_medium, run_hyena_medium)

}  // namespace
}  // namespace gdn_cuda::conv

namespace gdn_cuda {

std::tuple<Tensor, Tensor> hyena_medium(const HyenaMedium& x) {
    require_given(x.name, x);
    return call<HyenaMedium, conv::run_hyena_medium>(x);
}

}  // namespace gdn_cuda
