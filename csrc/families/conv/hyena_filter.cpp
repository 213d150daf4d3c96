// hyena_filter and its gradients.
#include "hyena_filter.hpp"

#include <torch/csrc/stable/ops.h>

#include <gdn_cuda/conv.hpp>
#include <vector>

#include "../../operators/float64.hpp"
#include "../../operators/operator.hpp"
#include "../../operators/packed.hpp"
#include "../../operators/result_size.hpp"
#include "../../operators/torch_math.hpp"

namespace gdn_cuda::conv {
namespace {

// The operators that the public function calls: its length is symbolic in traces.
struct FilterCall {
    static constexpr const char* name = "hyena_filter";
    Given residues, log_poles;
    SymInt L;

    GDN_FIELDS(residues, log_poles, L)
};
struct FilterBackwardCall {
    static constexpr const char* name = "hyena_filter_backward";
    Given grad, residues, log_poles;

    GDN_FIELDS(grad, residues, log_poles)
};

struct PreparedFilter {
    View residues;
    HyenaFilterArgs args{};
};

PreparedFilter prepare(const Checks& check, const View& residues, const View& log_poles, int64_t tokens) {
    GDN_REQUIRE(check, residues.rank == 2 && residues.size(1) >= 1 && residues.size(1) <= kHyenaFilterMostStates, "residues",
                fmt::format("(rows, S), S from 1 to {}", kHyenaFilterMostStates), shape_text(residues));
    const int64_t rows = residues.size(0), count = residues.size(1);
    check.shape("log_poles", log_poles, {rows, count}, "(rows, S), as residues");
    const DType type = dtype_or_f64(check, "residues", residues, {DType::f32});
    check.dtype("log_poles", log_poles, {type});
    check.device("log_poles", log_poles, residues, "residues");
    for (const auto& [argument, view] : {std::pair{"residues", &residues}, {"log_poles", &log_poles}})
        GDN_REQUIRE(check, view->contiguous_tail(2), argument, "a contiguous tensor", stride_text(*view));
    GDN_REQUIRE(check, tokens >= 0 && tokens <= kMaxTokens, "L", fmt::format("a length from 0 to {}", kMaxTokens),
                fmt::format("{}", tokens));
    check_result_size(check, "L", {rows, tokens}, type, residues);
    PreparedFilter prepared{.residues = residues};
    HyenaFilterArgs& args = prepared.args;
    args.residues = static_cast<const float*>(residues.data);
    args.log_poles = static_cast<const float*>(log_poles.data);
    args.rows = check.count("residues", "rows", rows);
    args.count = static_cast<int>(count);
    args.tokens = tokens;
    check.grid("L", {HyenaFilterKernel::blocks(rows, tokens), 1, 1});
    check.grid("L", {HyenaFilterBackwardKernel::blocks(rows, count, tokens), 1, 1});
    return prepared;
}

PreparedFilter prepare_filter(const FilterCall& x) {
    return prepare({x.name}, View(x.residues), View(x.log_poles), x.L);
}

Tensor run_filter(const FilterCall& x) {
    PreparedFilter prepared = prepare_filter(x);
    const std::vector<int64_t> sizes{prepared.args.rows, prepared.args.tokens};
    const Tensor filter = new_tensor(x.residues, sizes);
    prepared.args.filter = static_cast<float*>(memory_of(filter));
    const DeviceScope scope(prepared.residues.device_index);
    HyenaFilterKernel::run(prepared.args, target_of(x.name, prepared.residues));
    return filter;
}

PreparedFilter prepare_filter_backward(const FilterBackwardCall& x) {
    const Checks check{x.name};
    const View grad(x.grad), residues(x.residues);
    check.rank("grad", grad, 2, "(rows, L)");
    PreparedFilter prepared = prepare(check, residues, View(x.log_poles), grad.size(1));
    check.shape("grad", grad, {residues.size(0), grad.size(1)}, "(rows, L)");
    check.dtype("grad", grad, {*dtype_of(residues)});
    check.device("grad", grad, residues, "residues");
    GDN_REQUIRE(check, grad.contiguous_tail(2), "grad", "a contiguous tensor", stride_text(grad));
    prepared.args.grad = static_cast<const float*>(grad.data);
    return prepared;
}

// The gradients of residues and log_poles.
std::tuple<Tensor, Tensor> run_filter_backward(const FilterBackwardCall& x) {
    PreparedFilter prepared = prepare_filter_backward(x);
    HyenaFilterArgs& args = prepared.args;
    const DeviceScope scope(prepared.residues.device_index);
    const int64_t units = HyenaFilterBackwardKernel::units(args.tokens);
    if (units == 0) return {math::zeros(x.residues, {args.rows, args.count}), math::zeros(x.residues, {args.rows, args.count})};
    const std::vector<int64_t> sizes{units, 2, args.rows, args.count};
    const Tensor sums = new_tensor(x.residues, sizes);
    args.sums = static_cast<float*>(memory_of(sums));
    HyenaFilterBackwardKernel::run(args, target_of(x.name, prepared.residues));
    const Tensor total = math::sum(sums, 0);
    const auto half = [&](int64_t first) { return math::reshape(math::narrow(total, 0, first, 1), {args.rows, args.count}); };
    return {torch::stable::clone(half(0)), math::mul(half(1), x.residues)};
}

GDN_REGISTER(FilterCall, prepare_filter, run_filter)
GDN_REGISTER(FilterBackwardCall, prepare_filter_backward, run_filter_backward)

}  // namespace
}  // namespace gdn_cuda::conv

namespace gdn_cuda {

Tensor hyena_filter(const HyenaFilter& x) {
    const conv::FilterCall arguments{x.residues, x.log_poles, {x.L}};
    require_given(arguments.name, arguments);
    return call<conv::FilterCall, conv::run_filter>(arguments);
}

}  // namespace gdn_cuda
