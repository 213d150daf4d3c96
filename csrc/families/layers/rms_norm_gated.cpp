// rms_norm_gated and its gradients.
#include <torch/csrc/stable/ops.h>

#include <cmath>
#include <gdn_cuda/layers.hpp>
#include <initializer_list>
#include <vector>

#include "../../operators/operator.hpp"
#include "rms_norm.hpp"
#include "rms_norm_backward.hpp"

namespace gdn_cuda::layers {
namespace {

struct RmsNormBackwardCall {
    static constexpr const char* name = "rms_norm_gated_backward";
    Given grad;
    RmsNormGated forward;

    GDN_FIELDS(grad, forward)
};

struct PreparedRmsNorm {
    View x, gate, weight;
    RmsNormProblem problem;
    RmsNormArgs args{};

    std::vector<int64_t> shape() const { return {x.sizes, x.sizes + x.rank}; }
};

void check_like(const Checks& check, const char* argument, const View& view, const View& x) {
    GDN_REQUIRE(check, view.rank == x.rank && std::equal(view.sizes, view.sizes + view.rank, x.sizes), argument,
                "the shape of x " + shape_text(x), shape_text(view));
    check.device(argument, view, x, "x");
}

// Whether vectors of eight can be loaded: 16 bytes for 16-bit elements, 32 for fp32.
bool has_vectors(const View& view) {
    return view.aligned16() && (view.stride(-1) == 1 || view.size(-1) == 1);
}

struct Merged {
    const View* view;
    RmsNormTensor* to;
};
// Leading dimensions: adjacent dimensions that one stride describes in every tensor are merged, those of size 1 dropped.
void merge_rows(const Checks& check, RmsNormArgs& args, std::initializer_list<Merged> tensors) {
    const View& x = *tensors.begin()->view;
    int dims = 0;
    for (int d = 0; d + 1 < x.rank; ++d) {
        if (x.size(d) == 1) continue;
        bool merges = dims > 0;
        for (const auto& [view, to] : tensors)
            if (view->defined() && merges) merges = to->strides[dims - 1] == view->stride(d) * x.size(d);
        if (!merges) ++dims;
        GDN_REQUIRE(check, dims <= kRmsNormDims, "x",
                    fmt::format("leading dimensions that {} strides describe, with those of the gate", kRmsNormDims),
                    stride_text(x));
        for (const auto& [view, to] : tensors)
            if (view->defined()) to->strides[dims - 1] = view->stride(d);
        args.sizes[dims - 1] = static_cast<unsigned>(merges ? args.sizes[dims - 1] * x.size(d) : x.size(d));
    }
    args.dims = dims;
    for (const auto& [view, to] : tensors)
        if (view->defined()) {
            to->values = tagged(*view);
            to->column = view->stride(-1);
        }
}

PreparedRmsNorm prepare_rms_norm(const char* function, const RmsNormGated& x) {
    const Checks check{function};
    PreparedRmsNorm prepared{.x = View(x.x), .gate = view_of(x.gate), .weight = view_of(x.weight), .problem = {}};
    const View &rows = prepared.x, &gate = prepared.gate, &weight = prepared.weight;
    GDN_REQUIRE(check, rows.rank >= 1, "x", "(…, D)", shape_text(rows));
    const DType io = check.number("x", rows);
    const int64_t D = rows.size(-1), group = x.group_size.value_or(D);
    GDN_REQUIRE(check, x.group_size ? group >= 1 && D % group == 0 : true, "group_size", fmt::format("a divisor of D = {}", D),
                fmt::format("{}", group));
    if (gate.defined()) {
        check_like(check, "gate", gate, rows);
        check.number("gate", gate);
    }
    if (weight.defined()) {
        check.shape("weight", weight, {D}, "(D,)");
        check.number("weight", weight);
        check.device("weight", weight, rows, "x");
    }
    GDN_REQUIRE(check, x.eps >= 0 && std::isfinite(x.eps), "eps", "a number that is not negative", fmt::format("{}", x.eps));

    RmsNormArgs& args = prepared.args;
    const int64_t columns = check.count("x", "columns", group), groups = D == 0 ? 0 : D / group;
    args.rows = check.count("x", "rows", D == 0 ? 0 : rows.numel() / D);
    args.columns = static_cast<int>(columns);
    args.groups = check.count("x", "groups", groups);
    args.inverse_columns = columns == 0 ? 0.f : static_cast<float>(1.0 / static_cast<double>(columns));
    args.epsilon = static_cast<float>(x.eps);
    args.norm_before_gate = x.norm_before_gate;
    args.activation = x.activation;
    if (weight.defined()) {
        args.weight = tagged(weight);
        args.weight_column = weight.stride(0);
    }
    if (args.rows > 0) merge_rows(check, args, {{&rows, &args.x}, {&gate, &args.gate}});
    const bool vectors = columns % 8 == 0 && has_vectors(rows) && (!weight.defined() || has_vectors(weight)) &&
                         (!gate.defined() || (has_vectors(gate) && gate.dtype == rows.dtype));
    prepared.problem = {.io = io, .vectors = vectors, .rows = args.rows, .columns = columns, .groups = groups};
    check.grid("x", {1, groups, 1});
    return prepared;
}
void check_rms_norm(const RmsNormGated& x) {
    prepare_rms_norm(x.name, x);
}

struct PreparedRmsNormBackward {
    PreparedRmsNorm forward;
    RmsNormBackwardArgs args{};
};

PreparedRmsNormBackward prepare_rms_norm_backward(const RmsNormBackwardCall& x) {
    const Checks check{x.name};
    PreparedRmsNormBackward prepared{.forward = prepare_rms_norm(x.name, x.forward)};
    PreparedRmsNorm& forward = prepared.forward;
    const View grad(x.grad);
    check_like(check, "grad", grad, forward.x);
    check.dtype("grad", grad, {forward.problem.io});
    if (forward.args.rows > 0)
        merge_rows(check, forward.args,
                   {{&forward.x, &forward.args.x}, {&forward.gate, &forward.args.gate}, {&grad, &prepared.args.grad}});
    forward.problem.vectors = forward.problem.vectors && has_vectors(grad);
    prepared.args.forward = forward.args;
    return prepared;
}

Tensor run_rms_norm(const RmsNormGated& x) {
    PreparedRmsNorm prepared = prepare_rms_norm(x.name, x);
    const Tensor out = new_tensor(x.x, prepared.shape());
    prepared.args.out = memory_of(out);
    const DeviceScope scope(prepared.x.device_index);
    RmsNorm::run(prepared.problem, prepared.args, target_of(x.name, prepared.x));
    return out;
}

// Gradients of x, the gate and the weight (in fp32); empty for absent tensors.
std::tuple<Tensor, Tensor, Tensor> run_rms_norm_backward(const RmsNormBackwardCall& call) {
    PreparedRmsNormBackward prepared = prepare_rms_norm_backward(call);
    const RmsNormGated& x = call.forward;
    const PreparedRmsNorm& forward = prepared.forward;
    const Target target = target_of(call.name, forward.x);
    const std::vector<int64_t> shape = forward.shape(), none{0};
    const Tensor dx = new_tensor(x.x, shape), dgate = x.gate ? new_tensor(*x.gate, shape) : new_tensor(x.x, none);
    const Blocks blocks = forward.problem.rows == 0 || forward.problem.columns == 0
                              ? Blocks{0, 0, 0}
                              : RmsNormBackward::blocks(forward.problem, rms_norm_backward_config(forward.problem),
                                                        jit::device_traits(target.ordinal));
    const std::vector<int64_t> partials_shape{blocks[0], forward.x.size(-1)};
    const Tensor partials = new_tensor(x.x, x.weight ? partials_shape : none, ScalarType::Float);
    RmsNormBackwardArgs& args = prepared.args;
    args.dx = memory_of(dx);
    args.dgate = memory_of(dgate);
    args.dweight = x.weight ? static_cast<float*>(memory_of(partials)) : nullptr;
    const DeviceScope scope(forward.x.device_index);
    RmsNormBackward::run(forward.problem, args, target);
    if (!x.weight) return {dx, dgate, partials};
    const int64_t over_blocks[] = {0};
    return {dx, dgate, torch::stable::sum(partials, torch::headeronly::IntHeaderOnlyArrayRef(over_blocks, 1))};
}

GDN_REGISTER(RmsNormGated, check_rms_norm, run_rms_norm)
GDN_REGISTER(RmsNormBackwardCall, prepare_rms_norm_backward, run_rms_norm_backward)

}  // namespace
}  // namespace gdn_cuda::layers

namespace gdn_cuda {

GDN_FUNCTION(rms_norm_gated, RmsNormGated, layers::run_rms_norm)

}  // namespace gdn_cuda
