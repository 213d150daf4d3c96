// Solution of Toeplitz systems, for Python and C++: the choice of method, and the code around the kernels.
//
// All arithmetic is fp64, whatever the tensors' dtype: a step of an elimination is bound by barriers, not by arithmetic, and
// the result is as accurate as one with refinement. Only `wait` synchronises with the device. For CPU tensors the same code
// calls Python's equivalents of the kernels, so that tests run it without a GPU.
#include <torch/csrc/stable/ops.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "../../operators/torch_math.hpp"
#include "toeplitz.hpp"
#include "toeplitz_methods.hpp"

namespace gdn_cuda::structured {
namespace {

using math::number;

const torch::stable::Device kCpu(torch::headeronly::DeviceType::CPU);

bool in_fp64(DType type) {
    return type == DType::f64 || type == DType::c128;
}
// The reciprocal condition number below which a matrix is singular to working precision; larger in fp64, where rounding alone
// makes singular matrices regular by a few digits.
double epsilon_of(DType type) {
    return in_fp64(type) ? 8 * std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
}
ScalarType widened(DType type) {
    return is_complex(type) ? ScalarType::ComplexDouble : ScalarType::Double;
}
Tensor no_info(const Tensor& like, const std::vector<int64_t>& shape) {
    return torch::stable::new_zeros(like, shape, ScalarType::Int);
}

Tensor no_info_on_cpu(const Tensor& like) {  // for explained calls, which compute no info
    return torch::stable::full(like.sizes(), 0, ScalarType::Int, std::nullopt, kCpu);
}

// A checked system and its layout.
struct System {
    Tensor c, r;
    PreparedToeplitz prepared;

    int64_t n() const { return prepared.n(); }
    double epsilon() const { return epsilon_of(prepared.type); }
    bool empty() const { return n() == 0 || prepared.systems() == 0; }
    ScalarType type() const { return c.scalar_type(); }
    std::vector<int64_t> rhs_shape() const {  // (leading..., n, k)
        std::vector<int64_t> shape = prepared.shape.leading;
        shape.push_back(n()), shape.push_back(prepared.columns());
        return shape;
    }
    Tensor as_columns(const Tensor& right) const { return prepared.many ? right : torch::stable::unsqueeze(right, -1); }
    // The same matrices with other right-hand sides, of the result's shape.
    System with(const Tensor& right) const { return {c, r, prepare_toeplitz(prepared.names, c, r, right)}; }
};

// ---- info

// Reduces info to one per matrix where right-hand sides have leading dimensions that matrices lack: the minimum if any is
// negative, else the maximum.
Tensor info_per_matrix(const Tensor& told, const System& system) {
    const std::vector<int64_t> wanted = system.prepared.matrices(), &all = system.prepared.shape.leading;
    if (wanted == all) return told;
    const size_t more = all.size() - wanted.size();
    std::vector<int64_t> dims;
    bool none = false;
    for (size_t d = 0; d < all.size(); ++d)
        if (d < more || wanted[d - more] != all[d]) {
            dims.push_back(static_cast<int64_t>(d));
            none = none || all[d] == 0;
        }
    if (none) return no_info(told, wanted);
    const Tensor least = math::amin(told, dims), most = math::amax(told, dims);
    return math::reshape(math::where(math::less(least, number(0, ScalarType::Int)), least, most), wanted);
}

Tensor with_singular(const Tensor& info, const Tensor& conditioned, int64_t n) {
    const Tensor unknown = math::both(math::logical_not(conditioned), math::logical_not(info));
    return math::masked_fill(info, unknown, number(static_cast<double>(n + 1), ScalarType::Int));
}

// ---- Elimination by thread block clusters, between two FFTs

// e^{pi i k / n}
Tensor half_turns(int64_t n, const Tensor& like) {
    const Tensor places = torch::stable::subtract(math::counts(n, like), number(1));
    return math::turns(math::mul(places, number(std::numbers::pi / static_cast<double>(n))));
}

// The generators kernel flattens systems and appends a probe to their right-hand sides, from which info is computed.
Solution by_clusters(const System& system, const Tensor& b) {
    const int64_t n = system.n(), columns = system.prepared.columns();
    if (system.empty()) return {math::zeros(b, system.prepared.result()), no_info(b, system.prepared.shape.leading)};
    const auto [left, right, rhs, scales] = call<ToeplitzGeneratorsCall, toeplitz_generators>({system.c, system.r, b});
    const auto [found, steps] = call<ToeplitzEliminateCall, toeplitz_eliminate>({left, right, rhs});
    Tensor x = math::mul(math::transform("aten::fft_ifft", found, {}, -1, math::Scaled::both), half_turns(n, b));
    if (!is_complex(system.prepared.type)) x = math::real(x);
    const Tensor probe = math::amax(math::abs(math::narrow(x, 1, columns, 1)), {-1, -2});
    const Tensor size = math::mul(torch::stable::select(scales, 1, 1), probe);
    const Tensor info = with_singular(steps, math::less_equal(size, number(1 / system.epsilon())), n);
    const Tensor broken = math::greater(steps, number(0, ScalarType::Int));
    const Tensor scale = math::masked_fill(torch::stable::select(scales, 1, 0), broken, number(std::nan("")));
    x = math::mul(math::narrow(x, 1, 0, columns), math::reshape(scale, {-1, 1, 1}));
    x = math::transposed(math::converted(x, system.type()));
    return {torch::stable::contiguous(math::reshape(x, system.prepared.result())),
            math::reshape(info, system.prepared.shape.leading)};
}

// ---- Solutions by torch's operators

struct Widened {
    Tensor column, row, rhs;  // (S,n) in fp64, scaled by powers of two; (S,n,k+1) with the probe
    Tensor scale;             // those powers (S,1); exact, and keep squares of pivots in range
};

// The probe, an additional right-hand side (S,n,1): fixed signs, without a pattern that a matrix might have.
Tensor make_probe(const Tensor& column) {
    const std::vector<int64_t> shape{column.size(-1)};
    Tensor steps = torch::stable::full(shape, 2654435761.0, ScalarType::Long, std::nullopt, column.device());
    Tensor first = math::narrow(steps, 0, 0, 1);
    torch::stable::fill_(first, 1013904223.0);
    const Tensor mixed =
        of_torch("aten::bitwise_and", "Tensor", math::cumsum(steps, 0), number(4294967295.0, ScalarType::Long));
    const Tensor high = of_torch("aten::bitwise_right_shift", "Tensor", math::mul(mixed, mixed), number(16, ScalarType::Long));
    const Tensor bit =
        math::converted(of_torch("aten::bitwise_and", "Tensor", high, number(1, ScalarType::Long)), ScalarType::Double);
    const Tensor signs = math::add(math::mul(bit, number(-2)), number(1));
    return torch::stable::unsqueeze(
        math::expand(math::converted(signs, column.scalar_type()), {column.size(0), column.size(1)}), -1);
}

Tensor inverse_power(const Tensor& size) {
    const Tensor exponents = math::converted(math::exponents(size), ScalarType::Double);
    return math::exp2(math::neg(math::minimum(math::maximum(exponents, number(-1000)), number(1000))));
}

Widened widened(const System& system, const Tensor& b) {
    const int64_t n = system.n(), systems = system.prepared.systems();
    const ScalarType wide = widened(system.prepared.type);
    std::vector<int64_t> shape = system.prepared.shape.leading;
    shape.push_back(n);
    const auto flattened = [&](const Tensor& y) {
        return math::reshape(math::expand(math::converted(y, wide), shape), {systems, n});
    };
    const Tensor column = flattened(system.c);
    const Tensor row =
        math::cat({math::narrow(column, -1, 0, 1), math::without_first(flattened(system.r))}, -1);  // r[0] is not read
    const Tensor largest = math::maximum(math::amax(math::abs(column), {-1}), math::amax(math::abs(row), {-1}));
    const Tensor scale = torch::stable::unsqueeze(inverse_power(largest), -1);
    const Tensor right = math::expand(math::converted(system.as_columns(b), wide), system.rhs_shape());
    const Tensor rhs = math::reshape(right, {systems, n, system.prepared.columns()});
    return {math::mul(column, scale), math::mul(row, scale), math::cat({rhs, make_probe(column)}, -1), scale};
}

// n + 1 where 1 / (‖T‖_1 ‖T^-1 z‖_inf) is below epsilon, z random signs; like LAPACK's xGESVX, but with a lower bound of
// ‖T^-1‖_1, since ‖T^-1‖_inf = ‖T^-1‖_1 for Toeplitz matrices.
Tensor info_from_probe(const Widened& wide, const Tensor& probed, const Tensor& info, const System& system) {
    const Tensor row = math::abs(wide.row);
    const Tensor below = math::flip(math::cumsum(math::abs(wide.column), -1));
    const Tensor above = torch::stable::subtract(math::cumsum(row, -1), math::narrow(row, -1, 0, 1));
    const Tensor norm = math::amax(math::add(below, above), {-1});  // max column sum of |T|
    const Tensor size = math::mul(norm, math::amax(math::abs(probed), {-1, -2}));
    return with_singular(info, math::less_equal(size, number(1 / system.epsilon())), system.n());
}

Tensor rounded(const Tensor& x, const System& system) {
    return torch::stable::contiguous(math::reshape(math::converted(x, system.type()), system.prepared.result()));
}

Solution by_dense_lu(const System& system, const Tensor& b) {
    if (system.empty()) return {math::zeros(b, system.prepared.result()), no_info(b, system.prepared.shape.leading)};
    const int64_t n = system.n(), columns = system.prepared.columns();
    const Widened wide = widened(system, b);
    const Tensor diagonals = math::cat({math::flip(math::without_first(wide.row)), wide.column}, -1);
    const Tensor matrix =
        math::flip(of_torch("aten::unfold", "", diagonals, int64_t{-1}, n, int64_t{1}));  // without n² indices
    const auto [lu, pivots, failed] = results_of_torch<3>("aten::linalg_lu_factor_ex", "", matrix, true, false);
    // Some backends report the last zero pivot, so the first is searched for here.
    const Tensor pivot = of_torch("aten::diagonal", "", lu, int64_t{0}, int64_t{-2}, int64_t{-1});
    const Tensor zero = math::logical_not(math::greater(math::abs(pivot), number(0)));
    const Tensor before = of_torch("aten::zeros_like", "", math::narrow(zero, -1, 0, 1), std::optional<ScalarType>(),
                                   std::optional<torch::headeronly::Layout>(), std::optional<torch::stable::Device>(),
                                   std::optional<bool>(), std::optional<torch::headeronly::MemoryFormat>());
    const Tensor at = math::argmax(math::converted(math::cat({before, zero}, -1), ScalarType::Int), -1);
    const Tensor info = math::converted(at, ScalarType::Int);
    const Tensor found = of_torch("aten::linalg_lu_solve", "", lu, pivots, wide.rhs, true, false);

    const Tensor told = info_from_probe(wide, math::narrow(found, -1, columns, 1), info, system);
    const Tensor x = math::mul(math::narrow(found, -1, 0, columns), torch::stable::unsqueeze(wide.scale, -1));
    const Tensor broken = math::reshape(math::greater(info, number(0, ScalarType::Int)), {-1, 1, 1});
    return {rounded(math::masked_fill(x, broken, number(std::nan(""))), system),
            math::reshape(told, system.prepared.shape.leading)};
}

// Allowed residuals, relative to ‖T‖ ‖x‖: invisible in float32 solutions of any regular matrix; in float64 rounding dominates.
double allowed_residual(DType type) {
    return std::ldexp(1.0, type == DType::f32 ? -47 : -51);
}

// info is -1 where conjugate gradients do not converge. Synchronises with the device.
Solution by_pcg_in_torch(const System& system, const Tensor& b) {
    const Tensor none = no_info(b, system.prepared.shape.leading);
    if (system.empty()) return {math::zeros(b, system.prepared.result()), none};
    const Widened wide = widened(system, b);
    const Tensor scale = torch::stable::unsqueeze(inverse_power(math::amax(math::abs(wide.rhs), {1})), 1);
    const double residual = allowed_residual(system.prepared.type);
    const std::optional<Tensor> found =
        toeplitz_pcg_in_torch(wide.column, math::mul(wide.rhs, scale), residual, std::max(residual, system.epsilon() / 8));
    if (!found) {
        Tensor x = math::zeros(b, system.prepared.result()), info = none;
        torch::stable::fill_(x, std::nan(""));
        torch::stable::fill_(info, -1.0);
        return {x, info};
    }
    const int64_t columns = system.prepared.columns();
    const Tensor probed = math::div(math::narrow(*found, -1, columns, 1), math::narrow(scale, -1, columns, 1));
    const Tensor info = info_from_probe(wide, probed, math::reshape(none, {-1}), system);
    const Tensor x = math::mul(*found, math::div(torch::stable::unsqueeze(wide.scale, -1), scale));
    return {rounded(math::narrow(x, -1, 0, columns), system), math::reshape(info, system.prepared.shape.leading)};
}

// ---- Kernels, or their equivalents for CPU tensors

Solution by_gko(const System& system, const Tensor& b) {
    if (system.empty()) return {math::zeros(b, system.prepared.result()), no_info(b, system.prepared.shape.leading)};
    if (on_gpu(system.c)) return toeplitz_gko_kernel(system.prepared, b, system.epsilon());
    return call_through_torch<ToeplitzGkoCall, Solution>({system.c, system.r, b, system.epsilon()});
}
Solution by_schur(const System& system, const Tensor& b) {
    if (on_gpu(system.c)) return toeplitz_schur_kernel(system.prepared, b, system.epsilon());
    return call_through_torch<ToeplitzSchurCall, Solution>({system.c, b, system.epsilon()});
}
Solution by_pcg(const System& system, const Tensor& b) {
    if (on_gpu(system.c)) return toeplitz_pcg_kernel(system.prepared, b, system.epsilon());
    return call_through_torch<ToeplitzPcgCall, Solution>({system.c, b, system.epsilon()});
}

Tensor product(const System& system, const Tensor& x) {
    return call<ToeplitzMatvecCall, toeplitz_matvec>({system.c, system.r, x});
}

// Growth of generators costs the elimination a digit or two, invisible in results rounded to fp32. In fp64 one step of
// iterative refinement recovers them. With huge values FFTs overflow long before direct products do: corrections that are not
// finite are dropped.
template <class Solve>
Solution refined(const System& system, const Tensor& b, const Solve& solve) {
    auto [x, info] = solve(system, b);
    if (in_fp64(system.prepared.type) && !system.empty()) {
        const Tensor rest = torch::stable::subtract(b, product(system, x));
        const Tensor correction = std::get<0>(solve(system.with(rest), rest));
        const Tensor lost = math::logical_not(math::isfinite(correction));
        x = math::add(x, math::masked_fill(correction, lost, number(0)));
    }
    return {x, info_per_matrix(info, system)};
}

Solution general(const System& system, const Tensor& b, const ToeplitzLimits& limits) {
    if (on_gpu(system.c) && !system.empty() && toeplitz_eliminate_pays_here(system.prepared))
        return refined(system, b, by_clusters);
    if (system.n() <= limits.gko) return refined(system, b, by_gko);
    if (explaining()) remark(explain_dense_lu(system.n()));
    const auto [x, info] = by_dense_lu(system, b);
    return {x, info_per_matrix(info, system)};
}

Solution by(ToeplitzPositiveMethod method, const System& system, const Tensor& b) {
    switch (method) {
        case ToeplitzPositiveMethod::schur:
            return refined(system, b, by_schur);
        case ToeplitzPositiveMethod::pcg: {
            const auto [x, info] = by_pcg(system, b);
            return {x, info_per_matrix(info, system)};
        }
        case ToeplitzPositiveMethod::pcg_in_torch:
            break;
    }
    if (explaining()) remark(explain_pcg_in_torch(system.n()));
    const auto [x, info] = by_pcg_in_torch(system, b);
    return {x, info_per_matrix(info, system)};
}

// Tries methods for positive definite matrices first, then pivoting; each attempt waits for one copy of info.
Solution waited(const System& system, const Tensor& b, bool symmetric, const ToeplitzLimits& limits) {
    if (symmetric && !is_complex(system.prepared.type) && !system.empty())
        for (const ToeplitzPositiveMethod method : toeplitz_positive_methods(system.n(), limits)) {
            const auto [x, told] = by(method, system, b);
            if (explaining()) {
                remark(explain_failure(method));
                continue;
            }
            const Tensor info = torch::stable::to(told, kCpu);
            const auto* const first = static_cast<const int32_t*>(info.data_ptr());
            if (std::none_of(first, first + info.numel(), [](int32_t each) { return each < 0; })) return {x, info};
        }
    const auto [x, info] = general(system, b, limits);
    return {x, explaining() ? no_info_on_cpu(info) : torch::stable::to(info, kCpu)};
}

System checked(const ToeplitzSolveCall& x) {
    return {x.c, x.r, prepare_toeplitz_solve(x)};
}

Solution positive(const Tensor& c, const Tensor& b, const ToeplitzLimits& limits) {
    const System system{c, c, prepare_toeplitz_positive({c, b})};
    GDN_REQUIRE(system.prepared.check(), system.n() <= limits.positive(), "c",
                fmt::format("at most {} rows with assume_positive", limits.positive()), shape_text(system.prepared.column));
    return by(system.n() <= limits.schur ? ToeplitzPositiveMethod::schur : ToeplitzPositiveMethod::pcg, system, b);
}

}  // namespace

PreparedToeplitz prepare_toeplitz_solve(const ToeplitzSolveCall& x) {
    return prepare_toeplitz(solve_names(x.symmetric, x.wait), x.c, x.r, x.b);
}

Solution toeplitz_solve(const ToeplitzSolveCall& x) {
    const WithoutGradients scope;
    const System system = checked(x);
    return x.wait ? waited(system, x.b, x.symmetric, {}) : general(system, x.b, {});
}

Solution toeplitz_solve_positive(const ToeplitzPositiveCall& x) {
    const WithoutGradients scope;
    return positive(x.c, x.b, {});
}

PreparedToeplitz prepare_toeplitz_ends(const ToeplitzEndsCall& x) {
    return prepare_toeplitz({.function = x.name}, x.c, x.r, x.c);  // c as right-hand side, since its shape always fits
}

std::tuple<Tensor, Tensor, Tensor> toeplitz_ends(const ToeplitzEndsCall& call) {
    const WithoutGradients scope;
    const Tensor &c = call.c, &r = call.r;
    const PreparedToeplitz prepared = prepare_toeplitz_ends(call);
    std::vector<int64_t> shape = prepared.matrices();
    const int64_t n = prepared.n();
    Tensor ends = torch::stable::new_zeros(c, {n, 2});
    for (const int64_t k : {0, 1})
        if (n > 0) {
            Tensor end = math::narrow(math::narrow(ends, 0, k * (n - 1), 1), 1, k, 1);
            torch::stable::fill_(end, 1.0);
        }
    shape.push_back(n), shape.push_back(2);
    const Tensor both = math::expand(ends, shape);
    const auto [x, info] = waited({c, r, prepare_toeplitz(prepared.names, c, r, both)}, both, false, {});
    return {torch::stable::contiguous(torch::stable::select(x, -1, 0)),
            torch::stable::contiguous(torch::stable::select(x, -1, 1)), info};
}

PreparedToeplitz prepare_toeplitz_inverse_apply(const ToeplitzInverseCall& x) {
    return prepare_toeplitz({x.name, "gs_u", "gs_v", "x", "generators"}, x.gs_u, x.gs_v, x.x);
}

// (1/u_0) [ L(u) L(Jv)^T - L(Sv) L(SJu)^T ] x, NaN where |u_0| <= n epsilon max(|u|, |v|): two products with the transposes of
// both matrices, and two with them.
Tensor toeplitz_inverse_apply(const ToeplitzInverseCall& call) {
    const WithoutGradients scope;
    const Tensor& x = call.x;
    const PreparedToeplitz prepared = prepare_toeplitz_inverse_apply(call);
    const int64_t n = prepared.n();
    if (n == 0 || prepared.systems() == 0) return math::zeros(x, prepared.result());
    const auto times = [&](const Tensor& first, const Tensor& y, bool transpose) {  // L(first) y or L(first)^T y
        const Tensor row = torch::stable::new_zeros(first, {n});
        return on_gpu(x) ? toeplitz_matvec({first, row, y, transpose})
                         : toeplitz_matvec_by_transforms(first, row, y, transpose);
    };
    std::vector<int64_t> shape = prepared.matrices();
    shape.push_back(n);
    const Tensor first = math::expand(call.gs_u, shape), last = math::expand(call.gs_v, shape);
    const auto shifted = [&](const Tensor& y) {
        const std::vector<int64_t> one{1, -1};
        return torch::stable::pad(y, one);
    };
    const Tensor one = times(first, times(math::flip(last), x, true), false);
    const Tensor other = times(shifted(last), times(shifted(math::flip(first)), x, true), false);
    const Tensor largest = math::maximum(math::amax(math::abs(first), {-1}, true), math::amax(math::abs(last), {-1}, true));
    const Tensor corner = math::narrow(first, -1, 0, 1);
    const Tensor regular = math::greater(math::abs(corner), math::mul(largest, number(static_cast<double>(n) * call.epsilon)));
    const Tensor divisor = math::masked_fill(corner, math::logical_not(regular), number(std::nan("")));
    return math::div(torch::stable::subtract(one, other), prepared.many ? torch::stable::unsqueeze(divisor, -1) : divisor);
}

namespace {

// For tests: solves on any device with other limits: rows of gko and schur, minimum and maximum rows of pcg.
Solution toeplitz_solve_within(const Tensor& c, const Tensor& r, const Tensor& b, bool symmetric, bool wait,
                               const std::vector<int64_t>& limits) {
    const WithoutGradients scope;
    const ToeplitzLimits other{limits.at(0), limits.at(1), limits.at(2), limits.at(3)};
    const System system = checked({c, r, b, symmetric, wait});
    return wait ? waited(system, b, symmetric, other) : general(system, b, other);
}
Solution toeplitz_solve_positive_within(const Tensor& c, const Tensor& b, const std::vector<int64_t>& limits) {
    const WithoutGradients scope;
    return positive(c, b, {limits.at(0), limits.at(1), limits.at(2), limits.at(3)});
}
Solution toeplitz_pcg_long(const Tensor& c, const Tensor& b) {
    const WithoutGradients scope;
    const System system{c, c, prepare_toeplitz_positive({c, b})};
    return by(ToeplitzPositiveMethod::pcg_in_torch, system, b);
}
// Equivalent of the kernel for CPU tensors.
Solution gko_by_clusters(const ToeplitzGkoCall& x) {
    const WithoutGradients scope;
    return by_clusters(checked({x.c, x.r, x.b}), x.b);
}
Tensor toeplitz_inverse_apply_in_torch(const Tensor& gs_u, const Tensor& gs_v, const Tensor& x, double epsilon) {
    return toeplitz_inverse_apply({gs_u, gs_v, x, epsilon});
}

}  // namespace

GDN_REGISTER(ToeplitzSolveCall, prepare_toeplitz_solve, toeplitz_solve)
GDN_REGISTER(ToeplitzPositiveCall, prepare_toeplitz_positive, toeplitz_solve_positive)
GDN_REGISTER(ToeplitzEndsCall, prepare_toeplitz_ends, toeplitz_ends)
GDN_REGISTER(ToeplitzInverseCall, prepare_toeplitz_inverse_apply, toeplitz_inverse_apply)

STABLE_TORCH_LIBRARY_IMPL(gdn_cuda, CPU, m) {
    m.impl(ToeplitzGkoCall::name, &detail::run_boxed<ToeplitzGkoCall, gko_by_clusters>);
}

// Registers parts of the solver by name, for tests.
STABLE_TORCH_LIBRARY_FRAGMENT(gdn_cuda, m) {
    m.def("toeplitz_solve_within(Tensor c, Tensor r, Tensor b, bool symmetric, bool wait, int[] limits) -> (Tensor, Tensor)");
    m.def("toeplitz_solve_positive_within(Tensor c, Tensor b, int[] limits) -> (Tensor, Tensor)");
    m.def("toeplitz_pcg_long(Tensor c, Tensor b) -> (Tensor, Tensor)");
    m.def("toeplitz_inverse_apply_in_torch(Tensor gs_u, Tensor gs_v, Tensor x, float epsilon) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(gdn_cuda, CompositeExplicitAutograd, m) {
    m.impl("toeplitz_solve_within", TORCH_BOX(&toeplitz_solve_within));
    m.impl("toeplitz_solve_positive_within", TORCH_BOX(&toeplitz_solve_positive_within));
    m.impl("toeplitz_pcg_long", TORCH_BOX(&toeplitz_pcg_long));
    m.impl("toeplitz_inverse_apply_in_torch", TORCH_BOX(&toeplitz_inverse_apply_in_torch));
}

}  // namespace gdn_cuda::structured
