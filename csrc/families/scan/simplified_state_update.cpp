// simplified_state_update: one token of a diagonal complex scan: a product with B, the step of the states, a product with C.
#include <gdn_cuda/scan.hpp>

#include "../../operators/operator.hpp"
#include "../../operators/torch_math.hpp"
#include "simplified_step.hpp"

namespace gdn_cuda::scan {
namespace {

struct PreparedSimplified {
    View state;
    int64_t outputs = 0;  // H
    SimplifiedStepArgs args{};
};

SimplifiedStepArgs::Steps check_steps(const Checks& check, const char* argument, const View& steps, const View& state) {
    if (!steps.defined()) return {};
    GDN_REQUIRE(check, steps.same_shape({state.size(0), state.size(1)}) || steps.same_shape({state.size(1)}), argument,
                fmt::format("(B, P) = {}, or (P,)", shape_text(state)), shape_text(steps));
    check.dtype(argument, steps, {DType::f32});
    check.device(argument, steps, state, "state");
    return {static_cast<const float*>(steps.data), steps.rank == 2 ? steps.stride(0) : 0, steps.stride(-1)};
}

PreparedSimplified prepare_simplified(const SimplifiedStateUpdate& arguments) {
    const Checks check{arguments.name};
    const View state(arguments.state), x(arguments.x), A(arguments.A), B(arguments.B), C(arguments.C);
    check.rank("state", state, 2, "(B, P)");
    check.dtype("state", state, {DType::c64});
    check.distinct("state", state);
    const int64_t sequences = state.size(0), states = state.size(1);
    GDN_REQUIRE(check, x.rank == 2 && x.size(0) == sequences, "x", fmt::format("(B={}, H) to match state", sequences),
                shape_text(x));
    const int64_t inputs = x.size(1);
    check.dtype("x", x, {DType::f32, DType::c64});
    GDN_REQUIRE(check, A.same_shape({states}) || A.same_shape({states, 1}), "A", fmt::format("(P={},), or (P, 1)", states),
                shape_text(A));
    check.shape("B", B, {states, inputs}, "(P, H)");
    check.shape("C", C, {inputs, states}, "(H, P)");
    for (const auto& [argument, view] : {std::pair{"A", &A}, {"B", &B}, {"C", &C}}) check.dtype(argument, *view, {DType::c64});
    for (const auto& [argument, view] : {std::pair{"x", &x}, {"A", &A}, {"B", &B}, {"C", &C}})
        check.device(argument, *view, state, "state");
    const View dt(arguments.dt), delta_a = view_of(arguments.delta_a), D = view_of(arguments.D);
    if (D.defined()) {
        GDN_REQUIRE(check, D.same_shape({inputs}) || D.same_shape({inputs, inputs}), "D",
                    fmt::format("(H={},), or (H, H)", inputs), shape_text(D));
        check.dtype("D", D, {DType::f32});
        check.device("D", D, state, "state");
    }
    const Discretization discretization = arguments.discretization;
    GDN_REQUIRE(check,
                discretization == Discretization::bilinear || discretization == Discretization::zoh ||
                    discretization == Discretization::dirac,
                "discretization", "'bilinear', 'zoh' or 'dirac'",
                fmt::format("'{}'", names_of(discretization)[static_cast<size_t>(discretization)]));

    PreparedSimplified prepared{.state = state, .outputs = inputs};
    SimplifiedStepArgs& args = prepared.args;
    args.state = state.data;
    args.state_sequence = state.stride(0);
    args.state_p = state.stride(1);
    args.A = A.data;
    args.A_p = A.stride(0);
    args.delta = check_steps(check, "dt", dt, state);
    args.delta_a = check_steps(check, "delta_a", delta_a, state);
    args.scale = arguments.conj_sym ? 2.f : 1.f;
    args.discretization = discretization;
    args.sequences = sequences;
    args.states = check.count("state", "states", states);
    check.grid("state", {ceil_div(sequences * states, SimplifiedStep::kConfigurations.front().threads), 1, 1});
    check.apart({{"state", state}}, {{"x", x}, {"dt", dt}, {"A", A}, {"B", B}, {"C", C}, {"D", D}, {"delta_a", delta_a}});
    return prepared;
}

Tensor run_simplified(const SimplifiedStateUpdate& x) {
    PreparedSimplified prepared = prepare_simplified(x);
    SimplifiedStepArgs& args = prepared.args;
    const DeviceScope scope(prepared.state.device_index);
    const Tensor input = math::converted(x.x, ScalarType::ComplexFloat);
    const Tensor drive = torch::stable::contiguous(torch::stable::matmul(input, math::transposed(x.B)));
    const std::vector<int64_t> sizes{args.sequences, int64_t{2} * args.states};
    const Tensor halves = new_tensor(x.state, sizes, ScalarType::Float);
    args.drive = drive.data_ptr();
    args.halves = static_cast<float*>(halves.data_ptr());
    SimplifiedStep::run(args, target_of(x.name, prepared.state));

    // (Re C, Im C) interleaved along a row, as the kernel writes the states.
    const Tensor parts = call_torch("aten::view_as_real", "", torch::stable::contiguous(x.C));
    const Tensor out =
        torch::stable::matmul(halves, math::transposed(math::reshape(parts, {prepared.outputs, int64_t{2} * args.states})));
    if (!x.D) return out;
    const Tensor real = math::real(x.x);
    return math::add(out, x.D->dim() == 1 ? math::mul(*x.D, real) : torch::stable::matmul(real, math::transposed(*x.D)));
}

GDN_REGISTER(SimplifiedStateUpdate, prepare_simplified, run_simplified)

}  // namespace
}  // namespace gdn_cuda::scan

namespace gdn_cuda {

Tensor simplified_state_update(const SimplifiedStateUpdate& x) {
    require_given(x.name, x);
    SimplifiedStateUpdate arguments = x;  // torch's conjugate bit, which kernels ignore, is resolved
    for (Given* const each : {&arguments.x, &arguments.A, &arguments.B, &arguments.C}) each->emplace(plain_on_cuda(*each));
    return call<SimplifiedStateUpdate, scan::run_simplified>(arguments);
}

}  // namespace gdn_cuda
