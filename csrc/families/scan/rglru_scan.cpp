// rglru_scan and its gradients.
#include <torch/csrc/stable/ops.h>

#include <gdn_cuda/scan.hpp>
#include <vector>

#include "../../operators/layout.hpp"
#include "../../operators/operator.hpp"
#include "../../operators/packed.hpp"
#include "rglru.hpp"
#include "rglru_backward.hpp"

namespace gdn_cuda::scan {
namespace {

struct RglruCall {
    static constexpr const char* name = "rglru_scan";
    RglruScan scan;
    std::optional<double> max_sqrt_gradient = {};  // for the backward

    GDN_FIELDS(scan, max_sqrt_gradient)
};
struct RglruBackwardCall {
    static constexpr const char* name = "rglru_scan_backward";
    Given grad, checkpoints;
    OptionalTensor grad_last = {};
    RglruCall call;

    GDN_FIELDS(grad, checkpoints, grad_last, call)
};

// So that the end of the last tile is below 2^31.
constexpr int64_t kMostTokens = (int64_t{1} << 31) - 4096;

RglruTensor tensor_of(const View& view) {
    return {view.data, view.stride(0), view.stride(1), view.stride(2), view.aligned16() && view.stride(2) == 1};
}
RglruStates states_of(const View& view) {  // (batch or sequence, channel, state)
    if (!view.defined()) return {};
    return {static_cast<float*>(view.data), view.stride(0), view.stride(1), view.stride(2)};
}
RglruStates states_of(const Tensor& tensor) {
    RglruStates states = states_of(View(tensor));
    states.data = static_cast<float*>(memory_of(tensor));
    return states;
}

struct PreparedRglru {
    View u, A;
    DType io, state;
    int64_t sequences;
    RglruProblem problem;
    RglruArgs args{};

    std::vector<int64_t> states_shape() const { return {sequences, u.size(1), A.size(1)}; }
    std::vector<int64_t> checkpoints_shape() const { return {u.size(0), args.tiles, A.size(1), u.size(1)}; }
};

PreparedRglru prepare_rglru(const RglruCall& call) {
    const Checks check{call.name};
    const RglruScan& x = call.scan;
    const View u(x.u), delta(x.delta), A(x.A), initial = view_of(x.initial_state), cu_seqlens = view_of(x.cu_seqlens),
                                               reset = view_of(x.reset);
    check.rank("u", u, 3, "(B, D, L)");
    const DType io = check.number("u", u);
    check.dtype("delta", delta, {io});
    check.shape("delta", delta, {u.size(0), u.size(1), u.size(2)}, "(B, D, L)");
    check.device("delta", delta, u, "u");
    check.rank("A", A, 2, "(D, N)");
    const DType state = check.dtype("A", A, {io == DType::f64 ? DType::f64 : DType::f32});
    check.shape("A", A, {u.size(1), A.size(1)}, "(D, N)");
    check.device("A", A, u, "u");
    GDN_REQUIRE(check, A.size(1) >= 1 && A.size(1) <= kRglruMostStates, "A", fmt::format("1 to {} states", kRglruMostStates),
                shape_text(A));
    PreparedRglru prepared{.u = u, .A = A, .io = io, .state = state, .sequences = u.size(0), .problem = {}};
    RglruArgs& args = prepared.args;
    args.tokens = check.count("u", "tokens", u.size(2), kMostTokens);
    if (cu_seqlens.defined()) {
        GDN_REQUIRE(check, u.size(0) == 1, "u", "(1, D, L), as cu_seqlens is given", shape_text(u));
        check_cu_seqlens(check, cu_seqlens, u.size(2), u, "u");
        prepared.sequences = cu_seqlens.size(0) - 1;
        args.cu_seqlens = tagged(cu_seqlens);
    }
    if (initial.defined()) {
        check.shape("initial_state", initial, {prepared.sequences, u.size(1), A.size(1)}, "(B or sequences, D, N)");
        check.dtype("initial_state", initial, {state});
        check.device("initial_state", initial, u, "u");
        args.initial = states_of(initial);
    }
    if (reset.defined()) {
        check.shape("reset", reset, {u.size(0), u.size(2)}, "(B, L)");
        check.dtype("reset", reset, {DType::i32, DType::i64});
        check.device("reset", reset, u, "u");
        args.reset = tagged(reset);
        args.reset_batch = reset.stride(0);
        args.reset_token = reset.stride(1);
    }
    GDN_REQUIRE(check, !call.max_sqrt_gradient || *call.max_sqrt_gradient > 0, "max_sqrt_gradient", "a positive number",
                fmt::format("{}", *call.max_sqrt_gradient));
    args.u = tensor_of(u);
    args.delta = tensor_of(delta);
    args.A = {static_cast<float*>(A.data), 0, A.stride(0), A.stride(1)};
    args.batches = check.count("u", "sequences", u.size(0));
    args.channels = check.count("u", "channels", u.size(1));
    args.states = static_cast<int>(A.size(1));
    args.sequences = check.count("cu_seqlens", "sequences", prepared.sequences);
    args.first_multiplier = x.first_multiplier;
    prepared.problem = {.io = io, .channels_last = layout_of(u) == Layout::channels, .states = A.size(1)};
    const RglruConfig config = rglru_config(prepared.problem);
    args.tiles = static_cast<int>(ceil_div(args.tokens, config.tile()));
    check.grid("u", rglru_blocks(config, args.batches, args.channels));
    return prepared;
}

struct PreparedRglruBackward {
    PreparedRglru forward;
    RglruBackwardArgs args{};
};

PreparedRglruBackward prepare_rglru_backward(const RglruBackwardCall& call) {
    const Checks check{call.name};
    PreparedRglruBackward prepared{.forward = prepare_rglru(call.call)};
    const PreparedRglru& forward = prepared.forward;
    const View &u = forward.u, grad(call.grad), checkpoints(call.checkpoints), grad_last = view_of(call.grad_last);
    check.shape("grad", grad, {u.size(0), u.size(1), u.size(2)}, "(B, D, L)");
    check.dtype("grad", grad, {forward.io});
    check.device("grad", grad, u, "u");
    const std::vector<int64_t> kept = forward.checkpoints_shape();
    check.shape("checkpoints", checkpoints, {kept[0], kept[1], kept[2], kept[3]}, "(B, tiles, N, D)");
    check.dtype("checkpoints", checkpoints, {forward.state});
    check.device("checkpoints", checkpoints, u, "u");
    GDN_REQUIRE(check, checkpoints.contiguous_tail(4), "checkpoints", "a contiguous tensor", stride_text(checkpoints));
    RglruBackwardArgs& args = prepared.args;
    args.forward = forward.args;
    if (grad_last.defined()) {
        check.shape("grad_last", grad_last, {forward.sequences, u.size(1), forward.A.size(1)}, "(B or sequences, D, N)");
        check.dtype("grad_last", grad_last, {forward.state});
        check.device("grad_last", grad_last, u, "u");
        args.grad_last = states_of(grad_last);
    }
    args.grad = tensor_of(grad);
    args.forward.checkpoints = static_cast<float*>(checkpoints.data);
    args.least_root = call.call.max_sqrt_gradient ? static_cast<float>(0.5 / *call.call.max_sqrt_gradient) : 0.f;
    return prepared;
}

std::tuple<Tensor, Tensor, Tensor> run_rglru(const RglruCall& call) {
    PreparedRglru prepared = prepare_rglru(call);
    const Tensor out = empty_rows(call.scan.u, layout_of(prepared.u)),
                 checkpoints = new_tensor(call.scan.A, prepared.checkpoints_shape());
    Tensor last = new_tensor(call.scan.A, prepared.states_shape());
    if (call.scan.cu_seqlens) torch::stable::zero_(last);  // invalid offsets may leave out sequences
    RglruArgs& args = prepared.args;
    args.out = tensor_of(View(out));
    args.last = states_of(last);
    args.checkpoints = static_cast<float*>(memory_of(checkpoints));
    const DeviceScope scope(prepared.u.device_index);
    Rglru::run(prepared.problem, args, target_of(call.name, prepared.u));
    return {out, last, checkpoints};
}

// Returns the gradients of u, delta, log A (D, N), and initial_state (empty if there is none).
std::tuple<Tensor, Tensor, Tensor, Tensor> run_rglru_backward(const RglruBackwardCall& call) {
    PreparedRglruBackward prepared = prepare_rglru_backward(call);
    const PreparedRglru& forward = prepared.forward;
    const RglruScan& x = call.call.scan;
    const RglruConfig config = rglru_backward_config(forward.problem);
    const Tensor du = empty_rows(x.u, layout_of(forward.u)), ddelta = empty_rows(x.u, layout_of(forward.u));
    const std::vector<int64_t> none{0}, sums_shape{forward.u.size(0), forward.u.size(1), forward.A.size(1), config.warps()};
    const Tensor sums = new_tensor(x.A, sums_shape);
    Tensor dinitial = new_tensor(x.A, x.initial_state ? forward.states_shape() : none);
    if (x.cu_seqlens) torch::stable::zero_(dinitial);
    RglruBackwardArgs& args = prepared.args;
    args.du = tensor_of(View(du));
    args.ddelta = tensor_of(View(ddelta));
    args.dlog_A = static_cast<float*>(memory_of(sums));
    if (x.initial_state) args.dinitial = states_of(dinitial);
    const DeviceScope scope(forward.u.device_index);
    RglruBackward::run(forward.problem, args, target_of(call.name, forward.u));
    const int64_t summed[] = {0, 3};
    return {du, ddelta, torch::stable::sum(sums, torch::headeronly::IntHeaderOnlyArrayRef(summed, 2)), dinitial};
}

GDN_REGISTER(RglruCall, prepare_rglru, run_rglru)
GDN_REGISTER(RglruBackwardCall, prepare_rglru_backward, run_rglru_backward)

}  // namespace
}  // namespace gdn_cuda::scan

namespace gdn_cuda {

std::tuple<Tensor, Tensor> rglru_scan(const RglruScan& x) {
    using namespace scan;
    require_given(RglruCall::name, x);
    const RglruCall given{.scan = x};
    const auto [out, last, checkpoints] = call<RglruCall, run_rglru>(given);
    return {out, last};
}

}  // namespace gdn_cuda
