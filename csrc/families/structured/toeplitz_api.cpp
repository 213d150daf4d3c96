// The public C++ functions that solve Toeplitz systems. CUDA tensors go directly to the implementation of Python's operators;
// others are checked under the name of the called function and go through torch's dispatcher to Python's implementation.
#include <gdn_cuda/structured.hpp>
#include <limits>
#include <span>

#include "toeplitz.hpp"

namespace gdn_cuda {
namespace {

using namespace structured;

void require_regular(const char* function, const char* arguments, const Tensor& info) {
    const std::span told(static_cast<const int32_t*>(info.data_ptr()), static_cast<size_t>(info.numel()));
    if (std::ranges::any_of(told, [](int32_t each) { return each != 0; }))
        throw std::runtime_error(
            fmt::format("{}: {}: expected matrices that are nonsingular in working precision, got info [{}]", function,
                        arguments, fmt::join(told, ", ")));
}

Solution solve(const Tensor& c, const Tensor& r, const Tensor& b, bool symmetric, bool wait) {
    const ToeplitzSolveCall x{plain_on_cuda(c), plain_on_cuda(r), plain_on_cuda(b), symmetric, wait};
    prepare_toeplitz_solve(x);
    return call<ToeplitzSolveCall, structured::toeplitz_solve>(x);
}

}  // namespace

Solution toeplitz_solve_ex(const ToeplitzSystem& x) {
    require_given("toeplitz_solve_ex", x);
    return solve(x.c, x.r, x.b, false, false);
}

Tensor toeplitz_solve(const ToeplitzSystem& x) {
    require_given("toeplitz_solve", x);
    const auto [found, info] = solve(x.c, x.r, x.b, false, true);
    require_regular("toeplitz_solve", "c, r", info);
    return found;
}

Solution toeplitz_solve_symmetric_ex(const SymmetricToeplitzSystem& x) {
    require_given("toeplitz_solve_symmetric_ex", x);
    if (!x.assume_positive) return solve(x.c, x.c, x.b, true, false);
    const ToeplitzPositiveCall positive{plain_on_cuda(x.c), plain_on_cuda(x.b)};
    prepare_toeplitz_positive(positive);
    return call<ToeplitzPositiveCall, toeplitz_solve_positive>(positive);
}

Tensor toeplitz_solve_symmetric(const SymmetricToeplitzSystem& x) {
    require_given("toeplitz_solve_symmetric", x);
    const auto [found, info] = solve(x.c, x.c, x.b, true, true);
    require_regular("toeplitz_solve_symmetric", "c", info);
    return found;
}

Solution gs_compute_generators(const ToeplitzMatrix& x) {
    require_given("gs_compute_generators", x);
    const ToeplitzEndsCall ends{plain_on_cuda(x.c), plain_on_cuda(x.r)};
    prepare_toeplitz_ends(ends);
    const auto [first, last, info] = call<ToeplitzEndsCall, toeplitz_ends>(ends);
    require_regular("gs_compute_generators", "c, r", info);
    return {first, last};
}

Tensor toeplitz_inverse_apply(const ToeplitzInverse& x) {
    require_given("toeplitz_inverse_apply", x);
    const std::optional<DType> type = dtype_of(View(x.gs_u));
    const bool wide = type == DType::f64 || type == DType::c128;
    const ToeplitzInverseCall inverse{
        plain_on_cuda(x.gs_u), plain_on_cuda(x.gs_v), plain_on_cuda(x.x),
        wide ? std::numeric_limits<double>::epsilon() : double{std::numeric_limits<float>::epsilon()}};
    prepare_toeplitz_inverse_apply(inverse);
    return call<ToeplitzInverseCall, structured::toeplitz_inverse_apply>(inverse);
}

}  // namespace gdn_cuda
