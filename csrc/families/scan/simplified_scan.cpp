// simplified_scan and s5_inner: diagonal_scan between torch's matrix products, and the gradients of diagonal_scan.
#include <torch/csrc/stable/ops.h>

#include <gdn_cuda/scan.hpp>
#include <vector>

#include "../../operators/operator.hpp"
#include "../../operators/torch_math.hpp"
#include "diagonal_scan.hpp"
#include "diagonal_scan_backward.hpp"
#include "diagonal_scan_parts.hpp"

namespace gdn_cuda::scan {
namespace {

constexpr int64_t kMostTokens = int64_t{1} << 30;

// x_t = Ā_t x_{t−1} + f_t Bu_t; returns (x, last state).
struct DiagonalScanCall {
    static constexpr const char* name = "diagonal_scan";
    Given Bu, delta, A;
    OptionalTensor delta_a = {}, initial_state = {};
    Discretization discretization = Discretization::bilinear;

    GDN_FIELDS(Bu, delta, A, delta_a, initial_state, discretization)
};
// Returns the gradients of (Bu, delta, A, delta_a, initial state); zeros for absent arguments.
struct DiagonalScanBackwardCall {
    static constexpr const char* name = "diagonal_scan_backward";
    Given grad, grad_of_last, x;
    DiagonalScanCall scan;

    GDN_FIELDS(grad, grad_of_last, x, scan)
};
// Python composes these itself and calls only their checks.
struct SimplifiedScanCall {
    static constexpr const char* name = "simplified_scan";
    SimplifiedScan scan;

    GDN_FIELDS(scan)
};
struct S5InnerCall {
    static constexpr const char* name = "s5_inner";
    SimplifiedScan scan;
    Given D;

    GDN_FIELDS(scan, D)
};

// ---- Checks. Errors name the public function.

struct Sizes {
    int64_t batch, states, length;
};

void check_discretization(const Checks& check, Discretization discretization) {
    const bool known = discretization == Discretization::bilinear || discretization == Discretization::zoh ||
                       discretization == Discretization::dirac;
    GDN_REQUIRE(check, known, "discretization", "one of 'bilinear', 'zoh', 'dirac'",
                fmt::format("'{}'", names_of(discretization)[static_cast<size_t>(discretization)]));
}
void check_shape(const Checks& check, const char* argument, const View& view, const std::vector<int64_t>& shape,
                 const char* layout) {
    GDN_REQUIRE(check, std::ranges::equal(std::span(view.sizes, static_cast<size_t>(view.rank)), shape), argument,
                fmt::format("{} = ({})", layout, fmt::join(shape, ", ")), shape_text(view));
}
// Checks all but the scanned tensor, whose dtype and device the others must have.
void check_system(const Checks& check, const View& scanned, const char* scanned_name, DType type, const Sizes& sizes,
                  const View& A, const View& delta, const View& delta_a, const View& initial_state) {
    const DType real = type == DType::c64 ? DType::f32 : DType::f64;
    const auto same = [&](const char* argument, const View& view, DType expected) {
        check.dtype(argument, view, {expected});
        check.device(argument, view, scanned, scanned_name);
    };
    same("A", A, type);
    for (const auto& [argument, view] : {std::pair{"delta", &delta}, std::pair{"delta_a", &delta_a}}) {
        if (!view->defined()) continue;
        same(argument, *view, real);
        if (view->rank != 1) {
            check_shape(check, argument, *view, {sizes.batch, sizes.states, sizes.length}, "(P,) or (batch, P, L)");
        } else {
            check_shape(check, argument, *view, {sizes.states}, "(P,) or (batch, P, L)");
        }
    }
    if (initial_state.defined()) {
        same("initial_state", initial_state, type);
        check_shape(check, "initial_state", initial_state, {sizes.batch, sizes.states}, "(batch, P)");
    }
    GDN_REQUIRE(check, sizes.length <= kMostTokens, scanned_name, fmt::format("at most {} tokens", kMostTokens),
                shape_text(scanned));
    check.count(scanned_name, "rows, batch times P", sizes.batch * sizes.states);
}

struct PreparedDiagonalScan {
    View Bu;
    DType type;
    Sizes sizes;
};

PreparedDiagonalScan prepare_diagonal_scan(const DiagonalScanCall& x) {
    const Checks check{"simplified_scan"};
    PreparedDiagonalScan prepared{.Bu = View(x.Bu)};
    prepared.type = check.dtype("Bu", prepared.Bu, {DType::c64, DType::c128});
    check.rank("Bu", prepared.Bu, 3, "(batch, P, L)");
    prepared.sizes = {prepared.Bu.size(0), prepared.Bu.size(1), prepared.Bu.size(2)};
    const View A(x.A);
    check_shape(check, "A", A, {prepared.sizes.states}, "(P,)");
    check_system(check, prepared.Bu, "Bu", prepared.type, prepared.sizes, A, View(x.delta), view_of(x.delta_a),
                 view_of(x.initial_state));
    check_discretization(check, x.discretization);
    return prepared;
}

PreparedDiagonalScan prepare_diagonal_scan_backward(const DiagonalScanBackwardCall& x) {
    const PreparedDiagonalScan prepared = prepare_diagonal_scan(x.scan);
    const Checks check{"simplified_scan"};
    const auto& [batch, states, length] = prepared.sizes;
    for (const auto& [argument, tensor] :
         {std::pair{"grad", &x.grad}, std::pair{"x", &x.x}, std::pair{"grad_of_last", &x.grad_of_last}}) {
        const View view(*tensor);
        check.dtype(argument, view, {prepared.type});
        check.device(argument, view, prepared.Bu, "Bu");
        if (tensor == &x.grad_of_last) {
            check_shape(check, argument, view, {batch, states}, "(batch, P)");
        } else {
            check_shape(check, argument, view, {batch, states, length}, "(batch, P, L)");
        }
    }
    return prepared;
}

// `D`: s5_inner's; undefined for simplified_scan.
void check_composed(const Checks& check, const SimplifiedScan& x, const View& D) {
    const View u(x.u), A(x.A), B(x.B), C(x.C);
    const DType type = check.dtype("u", u, {DType::c64, DType::c128});
    check.rank("u", u, 3, "(batch, H, L)");
    GDN_REQUIRE(check, A.rank == 1 || (A.rank == 2 && A.size(1) == 1), "A", "(P,) or (P, 1)", shape_text(A));
    const int64_t states = A.size(0), H = u.size(1);
    for (const auto& [argument, view] : {std::pair{"B", &B}, std::pair{"C", &C}, std::pair{"D", &D}}) {
        if (!view->defined()) continue;
        check.dtype(argument, *view, {view != &D ? type : type == DType::c64 ? DType::f32 : DType::f64});
        check.device(argument, *view, u, "u");
    }
    check_shape(check, "B", B, {states, H}, "(P, H)");
    check_shape(check, "C", C, {H, states}, "(H, P)");
    if (D.defined()) check_shape(check, "D", D, {H}, "(H,)");
    check_system(check, u, "u", type, {u.size(0), states, u.size(2)}, A, View(x.delta), view_of(x.delta_a),
                 view_of(x.initial_state));
    check_discretization(check, x.discretization);
}
void prepare_simplified_scan(const SimplifiedScanCall& x) {
    check_composed({x.name}, x.scan, {});
}
void prepare_s5_inner(const S5InnerCall& x) {
    check_composed({x.name}, x.scan, View(x.D));
}

// ---- Launches

// Contiguous copies of tensors, kept alive until kernels have read them: torch's products may have any strides.
struct ScanOnGpu {
    Tensor Bu, delta, A;
    OptionalTensor delta_a, initial_state;
    DiagonalProblem problem;
    DiagonalInputs inputs;
    const void* initial = nullptr;
    Target target;

    ScanOnGpu(const DiagonalScanCall& x, const PreparedDiagonalScan& prepared, bool reverse)
        : Bu(torch::stable::contiguous(x.Bu)),
          delta(torch::stable::contiguous(x.delta)),
          A(torch::stable::contiguous(x.A)),
          target(target_of("simplified_scan", prepared.Bu)) {
        const Checks check{"simplified_scan"};
        GDN_REQUIRE(check, prepared.type == DType::c64, "u", "torch.complex64, as on every GPU", dtype_name(prepared.Bu));
        if (x.delta_a) delta_a.emplace(torch::stable::contiguous(*x.delta_a));
        if (x.initial_state) initial_state.emplace(torch::stable::contiguous(*x.initial_state));
        const auto sizes_of = [](const Tensor& tensor) {
            return StepSizes{.data = static_cast<const float*>(memory_of(tensor)), .varies = tensor.dim() == 3};
        };
        inputs.input = memory_of(Bu);
        inputs.A = memory_of(A);
        inputs.delta = sizes_of(delta);
        if (delta_a) inputs.delta_a = sizes_of(*delta_a);
        if (initial_state) initial = memory_of(*initial_state);
        inputs.states = static_cast<int>(prepared.sizes.states);
        inputs.rows = static_cast<int>(prepared.sizes.batch * prepared.sizes.states);
        inputs.length = static_cast<int>(prepared.sizes.length);
        inputs.discretization = x.discretization;
        problem = {.rows = inputs.rows,
                   .length = inputs.length,
                   .varying = inputs.delta.varies || inputs.delta_a.varies,
                   .reverse = reverse};
        const jit::DeviceTraits& device = jit::device_traits(target.ordinal);
        const DiagonalParts parts = diagonal_parts(problem, device, tuned<DiagonalTuning>(device));
        inputs.parts = parts.parts;
        inputs.part_tokens = parts.part_tokens;
        inputs.aligned = inputs.length % kDiagonalTokens == 0 && on_16_bytes(Bu) &&
                         (!inputs.delta.varies || on_16_bytes(delta)) && (!inputs.delta_a.varies || on_16_bytes(*delta_a));
    }

    static bool on_16_bytes(const Tensor& tensor) { return reinterpret_cast<uintptr_t>(memory_of(tensor)) % 16 == 0; }

    // The maps of parts, if rows have several; `scanned` is Bu, in reverse the gradient of x.
    OptionalTensor maps(const Tensor& scanned) const {
        if (inputs.parts == 1) return {};
        const std::vector<int64_t> shape{inputs.rows, inputs.parts, 4};
        Tensor maps = new_tensor(Bu, shape, ScalarType::Double);
        DiagonalScanPartsArgs args{.inputs = inputs, .maps = static_cast<double*>(memory_of(maps))};
        args.inputs.input = memory_of(scanned);
        DiagonalScanParts::run(problem, args, target);
        return maps;
    }
};

std::tuple<Tensor, Tensor> run_diagonal_scan(const DiagonalScanCall& x) {
    const PreparedDiagonalScan prepared = prepare_diagonal_scan(x);
    const auto& [batch, states, length] = prepared.sizes;
    const DeviceScope scope(prepared.Bu.device_index);
    const ScanOnGpu scan(x, prepared, false);
    const std::vector<int64_t> shape{batch, states, length}, last_shape{batch, states};
    const Tensor out = new_tensor(x.Bu, shape), last = new_tensor(x.Bu, last_shape);
    const OptionalTensor maps = scan.maps(scan.Bu);
    const DiagonalScanArgs args{.inputs = scan.inputs,
                                .initial_state = scan.initial,
                                .maps = maps ? static_cast<const double*>(memory_of(*maps)) : nullptr,
                                .x = memory_of(out),
                                .last_state = memory_of(last)};
    DiagonalScan::run(scan.problem, args, scan.target);
    return {out, last};
}

// Sums the blocks' sums (batch, parts, P, 4) over batch and parts.
Tensor sum_over_blocks(const Tensor& sums) {
    const std::vector<int64_t> dims{0, 1};
    return torch::stable::sum(sums, dims);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> run_diagonal_scan_backward(const DiagonalScanBackwardCall& x) {
    const PreparedDiagonalScan prepared = prepare_diagonal_scan_backward(x);
    const auto& [batch, states, length] = prepared.sizes;
    const DeviceScope scope(prepared.Bu.device_index);
    ScanOnGpu scan(x.scan, prepared, true);
    const Tensor grad = torch::stable::contiguous(x.grad), out = torch::stable::contiguous(x.x),
                 grad_of_last = torch::stable::contiguous(x.grad_of_last);
    scan.inputs.aligned = scan.inputs.aligned && ScanOnGpu::on_16_bytes(grad) && ScanOnGpu::on_16_bytes(out);
    const OptionalTensor maps = scan.maps(grad);
    const std::vector<int64_t> shape{batch, states, length}, last_shape{batch, states},
        sums_shape{batch, scan.inputs.parts, states, DiagonalScanBackwardConfig::kSums};
    const Tensor dBu = new_tensor(x.scan.Bu, shape), dinitial = new_tensor(x.scan.Bu, last_shape),
                 sums = new_tensor(x.scan.Bu, sums_shape, ScalarType::Double);
    // The kernel writes gradients of varying step sizes token by token.
    const bool varies = scan.inputs.delta.varies, varies_a = scan.inputs.delta_a.varies;
    OptionalTensor ddelta, ddelta_a;
    if (varies) ddelta.emplace(new_tensor(x.scan.delta, shape));
    if (varies_a) ddelta_a.emplace(new_tensor(x.scan.delta, shape));
    const DiagonalScanBackwardArgs args{.inputs = scan.inputs,
                                        .x = memory_of(out),
                                        .initial_state = scan.initial,
                                        .grad = memory_of(grad),
                                        .grad_of_last = memory_of(grad_of_last),
                                        .maps = maps ? static_cast<const double*>(memory_of(*maps)) : nullptr,
                                        .dinput = memory_of(dBu),
                                        .dinitial_state = memory_of(dinitial),
                                        .ddelta = varies ? static_cast<float*>(memory_of(*ddelta)) : nullptr,
                                        .ddelta_a = varies_a ? static_cast<float*>(memory_of(*ddelta_a)) : nullptr,
                                        .sums = static_cast<double*>(memory_of(sums))};
    DiagonalScanBackward::run(scan.problem, args, scan.target);
    const Tensor summed = sum_over_blocks(sums);  // (P, 4)
    const Tensor dA = call_torch("aten::view_as_complex", "", math::narrow(summed, 1, 0, 2));
    const auto column = [&](int64_t at) {
        return torch::stable::contiguous(math::converted(torch::stable::select(summed, 1, at), ScalarType::Float));
    };
    if (!ddelta) ddelta.emplace(column(2));
    if (!ddelta_a) ddelta_a.emplace(column(3));
    return {dBu, *ddelta, torch::stable::contiguous(math::converted(dA, ScalarType::ComplexFloat)), *ddelta_a, dinitial};
}

GDN_REGISTER(DiagonalScanCall, prepare_diagonal_scan, run_diagonal_scan)
GDN_REGISTER(DiagonalScanBackwardCall, prepare_diagonal_scan_backward, run_diagonal_scan_backward)

GDN_REGISTER_CHECK(SimplifiedScanCall, prepare_simplified_scan)
GDN_REGISTER_CHECK(S5InnerCall, prepare_s5_inner)

std::tuple<Tensor, Tensor> composed(const SimplifiedScan& x) {
    const Tensor A = torch::stable::reshape(x.A, std::vector<int64_t>{-1});
    const auto on_cuda = [](const OptionalTensor& tensor) { return tensor ? OptionalTensor(plain_on_cuda(*tensor)) : tensor; };
    const auto [states, last] = call<DiagonalScanCall, run_diagonal_scan>({.Bu = torch::stable::matmul(x.B, x.u),
                                                                           .delta = plain_on_cuda(x.delta),
                                                                           .A = plain_on_cuda(A),
                                                                           .delta_a = on_cuda(x.delta_a),
                                                                           .initial_state = on_cuda(x.initial_state),
                                                                           .discretization = x.discretization});
    return {torch::stable::matmul(x.C, states), last};
}

}  // namespace
}  // namespace gdn_cuda::scan

namespace gdn_cuda {

std::tuple<Tensor, Tensor> simplified_scan(const SimplifiedScan& x) {
    require_given("simplified_scan", x);
    scan::prepare_simplified_scan({x});
    return scan::composed(x);
}

Tensor s5_inner(const S5Inner& x) {
    require_given("s5_inner", x);
    const SimplifiedScan scanned{
        .u = x.u, .delta = x.delta, .A = x.A, .B = x.B, .C = x.C, .delta_a = x.delta_a, .discretization = x.discretization};
    scan::prepare_s5_inner({.scan = scanned, .D = x.D});
    const auto [y, last] = scan::composed(scanned);
    const Tensor direct = math::mul(torch::stable::unsqueeze(x.D, 1), math::real(x.u)), real = math::real(y);
    return torch::stable::subtract(direct, real, x.conj_sym ? -2.0 : -1.0);
}

}  // namespace gdn_cuda
