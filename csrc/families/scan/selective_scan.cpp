// selective_scan and its backward: allocations and launches.
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <array>
#include <tuple>

#include "../../operators/operator.hpp"
#include "../common/transposed.hpp"
#include "../common/uncovered_zeros.hpp"
#include "selective_backward_run.hpp"
#include "selective_forward_run.hpp"
#include "selective_prepare.hpp"
#include "selective_summary_run.hpp"

namespace gdn_cuda::scan {
namespace {

struct SelectiveScanCall {
    static constexpr const char* name = "selective_scan";
    SelectiveScan scan;
    bool keep_states = false;

    GDN_FIELDS(scan, keep_states)
};
struct SelectiveScanBackwardCall {
    static constexpr const char* name = "selective_scan_backward";
    Given grad_out;
    OptionalTensor grad_last_state;
    SelectiveScan scan;
    Given states;

    GDN_FIELDS(grad_out, grad_last_state, scan, states)
};
// The state after the scan, and the decay over it.
struct SelectiveSummaryCall {
    static constexpr const char* name = "selective_scan_summary";
    SelectiveScan scan;

    GDN_FIELDS(scan)
};
// The gradient of the state before the scan, and the same decay.
struct SelectiveSummaryBackwardCall {
    static constexpr const char* name = "selective_scan_summary_backward";
    Given grad_out;
    OptionalTensor grad_last_state;
    SelectiveScan scan;

    GDN_FIELDS(grad_out, grad_last_state, scan)
};
using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

// ---- Copies of tensors whose strides the kernels cannot read

Tensor dense(const Tensor& x) {
    return torch::stable::contiguous(x);
}
std::vector<int64_t> sizes_of(const View& view) {
    return {view.sizes, view.sizes + view.rank};
}
Tensor readable_rows(const Tensor& rows, Layout layout, const Target& target) {
    const View view(rows);
    if (kernels_can_read_rows(view, layout)) return rows;
    if (view.strides[layout == Layout::tokens ? 1 : 2] == 1) return common::transposed(rows, layout, target);
    if (layout == Layout::tokens) return dense(rows);
    return torch::stable::transpose(dense(torch::stable::transpose(rows, 1, 2)), 1, 2);
}
void apply(Tensor (*copy)(const Tensor&), std::initializer_list<OptionalTensor*> to) {
    for (OptionalTensor* each : to)
        if (*each) *each = copy(**each);
}
SelectiveScan readable(SelectiveScan x, const PreparedSelective& prepared, const Target& target) {
    for (OptionalTensor* rows : std::initializer_list<OptionalTensor*>{&x.u, &x.delta, &x.z, &x.delta_a})
        if (*rows) *rows = readable_rows(**rows, prepared.layout, target);
    apply(dense, {&x.D, &x.delta_bias, &x.initial_state});
    const SelectiveInputs& in = prepared.inputs;
    if (!kernels_can_read(in.B, in.state_size, in.length)) apply(dense, {&x.B});
    if (!kernels_can_read(in.C, in.state_size, in.length)) apply(dense, {&x.C});
    return x;
}

// A C++ caller's complex tensors may have torch's conjugate bit, which kernels ignore.
SelectiveScan without_conjugate_bits(SelectiveScan x) {
    if (x.A->scalar_type() == ScalarType::ComplexFloat) apply(plain_on_cuda, {&x.A, &x.B, &x.C, &x.initial_state});
    return x;
}

// ---- Results

// What tokens of no sequence have in new tensors of u's shape: zeros. Kernels write the others.
common::TokenRows token_rows(const ChannelRows& x, const PreparedSelective& prepared) {
    const int bytes = bytes_of(prepared.io), dim = prepared.inputs.dim;
    if (x.channel == 1) return {.data = x.data, .token = x.token * bytes, .rows = 1, .bytes = dim * bytes};
    return {.data = x.data, .token = x.token * bytes, .row = x.channel * bytes, .rows = dim, .bytes = bytes};
}
void clear_uncovered(std::initializer_list<ChannelRows> written, const PreparedSelective& prepared, const Target& target) {
    const SelectiveInputs& in = prepared.inputs;
    std::array<common::TokenRows, 4> rows{};
    std::ranges::transform(written, rows.begin(), [&](const ChannelRows& x) { return token_rows(x, prepared); });
    if (prepared.is_packed())
        common::UncoveredZeros::run({rows[0], rows[1], rows[2], rows[3]}, in.cu_seqlens, in.sequences, in.length, target);
}
ScalarType state_type(const PreparedSelective& prepared) {
    return prepared.is_complex ? ScalarType::ComplexFloat : ScalarType::Float;
}
Tensor empty_states(const Tensor& like, int64_t count, const PreparedSelective& prepared) {
    const std::vector<int64_t> sizes = {count, prepared.inputs.dim, prepared.inputs.state_size};
    return new_tensor(like, sizes, state_type(prepared));
}

// ---- Forward

PreparedSelective prepare_scan(const SelectiveScanCall& call) {
    return prepare_selective(Checks{call.name}, call.scan);
}

void require_kernel_types(const Checks& check, const PreparedSelective& prepared) {
    GDN_REQUIRE(check, prepared.io != DType::f64, "u", "float32 or bfloat16 or float16 on CUDA", "float64");
}

using ScanResults = std::tuple<Tensor, Tensor, Tensor>;

ScanResults launch_scan(const SelectiveScanCall& call, const PreparedSelective& prepared) {
    const Tensor out = empty_rows(call.scan.u, prepared.layout),
                 last_state = empty_states(call.scan.u, prepared.inputs.sequences, prepared);
    Tensor states = empty_states(call.scan.u, call.keep_states ? prepared.chunks() : 0, prepared);
    if (prepared.is_packed() && call.keep_states) torch::stable::zero_(states);
    const DeviceScope scope(prepared.u.device_index);
    const Target target = target_of(call.name, prepared.u);
    const SelectiveResults results{.out = channel_rows(View(out)),
                                   .last_state = memory_of(last_state),
                                   .states = call.keep_states ? memory_of(states) : nullptr};
    clear_uncovered({results.out}, prepared, target);
    run_selective_forward(prepared, results, target, call.scan.u);
    return {out, last_state, states};
}

ScanResults run_scan(const SelectiveScanCall& call) {
    const PreparedSelective prepared = prepare_scan(call);
    require_kernel_types(Checks{call.name}, prepared);
    if (prepared.kernels_can_read()) return launch_scan(call, prepared);
    const DeviceScope scope(prepared.u.device_index);
    const Target target = target_of(call.name, prepared.u);
    const SelectiveScanCall copied{readable(call.scan, prepared, target), call.keep_states};
    PreparedSelective copies = prepare_scan(copied);
    copies.layout = prepared.layout;
    return launch_scan(copied, copies);
}

// ---- Backward

struct PreparedBackward {
    PreparedSelective scan;
    SelectiveCotangents cotangents;
    bool kernels_can_read;  // otherwise tensors are copied
};

// `states`: undefined for a summary, which needs none.
template <class Call>
PreparedBackward prepare_cotangents(const Call& call, const View& states) {
    const Checks check{call.name};
    PreparedBackward prepared{.scan = prepare_selective(check, call.scan), .cotangents = {}, .kernels_can_read = true};
    const SelectiveInputs& inputs = prepared.scan.inputs;
    const View &u = prepared.scan.u, A(call.scan.A), grad_out(call.grad_out), grad_last = view_of(call.grad_last_state);
    check.shape("grad_out", grad_out, {inputs.batch, inputs.dim, inputs.length}, "(B, D, L)");
    check.dtype("grad_out", grad_out, {prepared.scan.io});
    check.device("grad_out", grad_out, u, "u");
    const auto state_like = [&](const char* argument, const View& view, int64_t count, const char* layout) {
        check.shape(argument, view, {count, inputs.dim, inputs.state_size}, layout);
        check.dtype(argument, view, {*dtype_of(A)});
        check.device(argument, view, u, "u");
        return view.contiguous_tail(3);
    };
    bool dense = !states.defined() || state_like("states", states, prepared.scan.chunks(), "(chunks, D, N)");
    if (grad_last.defined()) dense &= state_like("grad_last_state", grad_last, inputs.sequences, "(sequences, D, N)");
    PreparedSelective& scan = prepared.scan;
    scan.layout = layout_of_most({&u, &scan.delta, &scan.z, &scan.delta_a, &grad_out});
    prepared.kernels_can_read = scan.kernels_can_read() && dense && kernels_can_read_rows(grad_out, scan.layout);
    prepared.cotangents = {.out = channel_rows(grad_out), .last_state = grad_last.data, .states = states.data};
    return prepared;
}
PreparedBackward prepare_backward(const SelectiveScanBackwardCall& call) {
    return prepare_cotangents(call, View(call.states));
}

Gradients launch_backward(const SelectiveScanBackwardCall& call, const PreparedBackward& prepared) {
    const SelectiveScan& x = call.scan;
    const Tensor& like = x.u;
    const auto none = [&] { return new_tensor(like, {0}); };
    SelectiveGradients to{};
    const auto rows = [&](const OptionalTensor& x, ChannelRows& into) {
        if (!x) return none();
        const Tensor made = empty_rows(*x, prepared.scan.layout);
        into = channel_rows(View(made));
        return made;
    };
    const bool nothing_to_sum = prepared.scan.inputs.dim == 0 || prepared.scan.inputs.sequences == 0;
    // A gradient with the argument's sizes, contiguous, described as the argument is.
    const auto coefficients = [&](const Tensor& x, const Coefficients& as, Coefficients& into) {
        const View view(x);
        Tensor made = new_tensor(x, sizes_of(view));
        if (nothing_to_sum) torch::stable::zero_(made);
        const int64_t reals = is_complex(*dtype_of(view)) ? 2 : 1, pair = prepared.scan.is_complex;
        const int64_t last = view.size(-1) * reals, n = view.size(-2);
        into = as;
        into.data = memory_of(made);
        into.pair = pair;
        if (as.varies) {
            into.token = pair ? 2 : 1;
            into.n = last;
            into.group = n * last;
            into.batch = as.groups * into.group;
        } else {
            into.n = reals;
            into.group = last;
        }
        return made;
    };
    const auto per_channel = [&](const OptionalTensor& x, float*& into) {
        if (!x) return none();
        const Tensor made = new_tensor(*x, sizes_of(View(*x)));
        into = static_cast<float*>(memory_of(made));
        return made;
    };
    const Tensor du = rows(x.u, to.u), ddelta = rows(x.delta, to.delta), dz = rows(x.z, to.z),
                 ddelta_a = rows(x.delta_a, to.delta_a);
    const Tensor dA = coefficients(x.A, prepared.scan.inputs.A, to.A), dB = coefficients(x.B, prepared.scan.inputs.B, to.B),
                 dC = coefficients(x.C, prepared.scan.inputs.C, to.C);
    const Tensor dD = per_channel(x.D, to.D), ddelta_bias = per_channel(x.delta_bias, to.delta_bias);
    const Tensor dinitial = x.initial_state ? empty_states(like, prepared.scan.inputs.sequences, prepared.scan) : none();
    if (x.initial_state) to.initial_state = memory_of(dinitial);
    const DeviceScope scope(prepared.scan.u.device_index);
    const Target target = target_of(call.name, prepared.scan.u);
    clear_uncovered({to.u, to.delta, to.z, to.delta_a}, prepared.scan, target);
    run_selective_backward(prepared.scan, prepared.cotangents, to, target, like);
    return {du, ddelta, dA, dB, dC, dD, dz, ddelta_bias, ddelta_a, dinitial};
}

Gradients run_backward(const SelectiveScanBackwardCall& call) {
    const PreparedBackward prepared = prepare_backward(call);
    require_kernel_types(Checks{call.name}, prepared.scan);
    if (prepared.kernels_can_read) return launch_backward(call, prepared);
    const DeviceScope scope(prepared.scan.u.device_index);
    const Target target = target_of(call.name, prepared.scan.u);
    SelectiveScanBackwardCall copied{readable_rows(call.grad_out, prepared.scan.layout, target), call.grad_last_state,
                                     readable(call.scan, prepared.scan, target), dense(call.states)};
    apply(dense, {&copied.grad_last_state});
    PreparedBackward copies = prepare_backward(copied);
    copies.scan.layout = prepared.scan.layout;
    return launch_backward(copied, copies);
}

// ---- Summaries

using Summary = std::tuple<Tensor, Tensor>;

Summary launch_summary(const char* name, const Tensor& like, const PreparedSelective& prepared, const ChannelRows& grad_out,
                       const void* first) {
    const Tensor state = empty_states(like, prepared.inputs.sequences, prepared),
                 decay = empty_states(like, prepared.inputs.sequences, prepared);
    const DeviceScope scope(prepared.u.device_index);
    run_selective_summary(prepared, grad_out, first, {.state = memory_of(state), .decay = memory_of(decay)},
                          target_of(name, prepared.u), like);
    return {state, decay};
}

PreparedSelective prepare_summary(const SelectiveSummaryCall& call) {
    return prepare_selective(Checks{call.name}, call.scan);
}
Summary run_summary(const SelectiveSummaryCall& call) {
    const PreparedSelective prepared = prepare_summary(call);
    require_kernel_types(Checks{call.name}, prepared);
    if (prepared.kernels_can_read()) return launch_summary(call.name, call.scan.u, prepared, {}, prepared.inputs.initial_state);
    const DeviceScope scope(prepared.u.device_index);
    const SelectiveSummaryCall copied{readable(call.scan, prepared, target_of(call.name, prepared.u))};
    PreparedSelective copies = prepare_summary(copied);
    copies.layout = prepared.layout;
    return launch_summary(call.name, call.scan.u, copies, {}, copies.inputs.initial_state);
}

PreparedBackward prepare_summary_backward(const SelectiveSummaryBackwardCall& call) {
    return prepare_cotangents(call, View{});
}
Summary run_summary_backward(const SelectiveSummaryBackwardCall& call) {
    const auto launch = [&](const PreparedBackward& x) {
        return launch_summary(call.name, call.scan.u, x.scan, x.cotangents.out, x.cotangents.last_state);
    };
    const PreparedBackward prepared = prepare_summary_backward(call);
    require_kernel_types(Checks{call.name}, prepared.scan);
    if (prepared.kernels_can_read) return launch(prepared);
    const DeviceScope scope(prepared.scan.u.device_index);
    const Target target = target_of(call.name, prepared.scan.u);
    SelectiveSummaryBackwardCall copied{readable_rows(call.grad_out, prepared.scan.layout, target), call.grad_last_state,
                                        readable(call.scan, prepared.scan, target)};
    apply(dense, {&copied.grad_last_state});
    PreparedBackward copies = prepare_summary_backward(copied);
    copies.scan.layout = prepared.scan.layout;
    return launch(copies);
}

GDN_REGISTER(SelectiveScanCall, prepare_scan, run_scan)
GDN_REGISTER(SelectiveScanBackwardCall, prepare_backward, run_backward)
GDN_REGISTER(SelectiveSummaryCall, prepare_summary, run_summary)
GDN_REGISTER(SelectiveSummaryBackwardCall, prepare_summary_backward, run_summary_backward)

}  // namespace
}  // namespace gdn_cuda::scan

namespace gdn_cuda {

std::tuple<Tensor, Tensor> selective_scan(const SelectiveScan& x) {
    using namespace scan;
    require_given("selective_scan", x);
    const auto [out, last_state, states] =
        call<SelectiveScanCall, run_scan>({.scan = without_conjugate_bits(x), .keep_states = false});
    return {out, last_state};
}

}  // namespace gdn_cuda
