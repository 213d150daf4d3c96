// The public C++ API: Toeplitz matrices. CUDA tensors straight to the plan that Python's operators run, others through torch's
// dispatcher to what Python registers for them.
#include <torch/csrc/stable/ops.h>

#include <gdn_cuda/api.hpp>
#include <limits>
#include <span>

#include "dispatch.hpp"
#include "structured.hpp"

namespace gdn_cuda {
namespace {

using Solution = std::tuple<Tensor, Tensor>;

Tensor multiply(const Tensor& c, const Tensor& r, const Tensor& x, bool transpose, const OptionalTensor& out) {
    if (c.is_cuda()) {
        if (!out) return structured::toeplitz_matvec(plain(c), plain(r), plain(x), transpose);
        structured::toeplitz_matvec_out(plain(c), plain(r), plain(x), transpose, *out);
        return *out;
    }
    structured::check_toeplitz_matvec(c, r, x, transpose, out);
    const Tensor found = tensor_of(dispatch<1>("gdn_cuda::toeplitz_matvec", c, r, x, transpose)[0]);
    if (!out) return found;
    Tensor written = *out;
    return torch::stable::copy_(written, found);
}

Solution solve(const Tensor& c, const Tensor& r, const Tensor& b, bool symmetric, bool wait) {
    if (c.is_cuda()) return structured::toeplitz_solve(plain(c), plain(r), plain(b), symmetric, wait);
    structured::check_toeplitz_solve(c, r, b, symmetric, wait);
    const auto found = dispatch<2>("gdn_cuda::toeplitz_solve", c, r, b, symmetric, wait);
    return {tensor_of(found[0]), tensor_of(found[1])};
}

void require_regular(const char* function, const char* arguments, const Tensor& info) {
    const std::span told(static_cast<const int32_t*>(info.data_ptr()), static_cast<size_t>(info.numel()));
    if (std::ranges::any_of(told, [](int32_t each) { return each != 0; }))
        throw std::runtime_error(
            fmt::format("{}: {}: expected matrices that are nonsingular in working precision, got info [{}]", function,
                        arguments, fmt::join(told, ", ")));
}

}  // namespace

Tensor toeplitz_matvec(const Tensor& c, const Tensor& r, const Tensor& x, const OptionalTensor& out) {
    return multiply(c, r, x, false, out);
}

Tensor toeplitz_matvec_transpose(const Tensor& c, const Tensor& r, const Tensor& x, const OptionalTensor& out) {
    return multiply(c, r, x, true, out);
}

Solution toeplitz_solve_ex(const Tensor& c, const Tensor& r, const Tensor& b) {
    return solve(c, r, b, false, false);
}

Tensor toeplitz_solve(const Tensor& c, const Tensor& r, const Tensor& b) {
    const auto [x, info] = solve(c, r, b, false, true);
    require_regular("toeplitz_solve", "c, r", info);
    return x;
}

Solution toeplitz_solve_symmetric_ex(const Tensor& c, const Tensor& b, bool assume_positive) {
    if (!assume_positive) return solve(c, c, b, true, false);
    if (c.is_cuda()) return structured::toeplitz_solve_positive(plain(c), plain(b));
    structured::check_toeplitz_positive(c, b);
    const auto found = dispatch<2>("gdn_cuda::toeplitz_solve_positive", c, b);
    return {tensor_of(found[0]), tensor_of(found[1])};
}

Tensor toeplitz_solve_symmetric(const Tensor& c, const Tensor& b) {
    const auto [x, info] = solve(c, c, b, true, true);
    require_regular("toeplitz_solve_symmetric", "c", info);
    return x;
}

Solution gs_compute_generators(const Tensor& c, const Tensor& r) {
    const auto columns = [&]() -> std::tuple<Tensor, Tensor, Tensor> {
        if (c.is_cuda()) return structured::gs_compute_generators(plain(c), plain(r));
        structured::check_gs_compute_generators(c, r);
        const auto found = dispatch<3>("gdn_cuda::gs_compute_generators", c, r);
        return {tensor_of(found[0]), tensor_of(found[1]), tensor_of(found[2])};
    }();
    require_regular("gs_compute_generators", "c, r", std::get<2>(columns));
    return {std::get<0>(columns), std::get<1>(columns)};
}

Tensor toeplitz_inverse_apply(const Tensor& gs_u, const Tensor& gs_v, const Tensor& x) {
    const std::optional<DType> type = dtype_of(View(gs_u));
    const bool wide = type == DType::f64 || type == DType::c128;
    const double epsilon = wide ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
    if (x.is_cuda()) return structured::toeplitz_inverse_apply(plain(gs_u), plain(gs_v), plain(x), epsilon);
    structured::check_toeplitz_inverse_apply(gs_u, gs_v, x);
    return tensor_of(dispatch<1>("gdn_cuda::toeplitz_inverse_apply", gs_u, gs_v, x, epsilon)[0]);
}

}  // namespace gdn_cuda
