// The public C++ API: Toeplitz matrices. The kernels on CUDA tensors, what Python registers for them on others, and what
// surrounds them in gdn_cuda/ops/structured_toeplitz_solve.py, but for the ways beyond their rows.
#include <torch/csrc/stable/ops.h>

#include <gdn_cuda/api.hpp>
#include <limits>

#include "../jit_kernels/heuristics/structured_toeplitz.hpp"
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

Solution two_of(const std::array<StableIValue, 2>& results) {
    return {tensor_of(results[0]), tensor_of(results[1])};
}

bool in_fp64(const Tensor& x) {
    const std::optional<DType> type = dtype_of(View(x));
    return type == DType::f64 || type == DType::c128;
}

// Of a matrix that is singular to working precision; in fp64 rounding alone keeps one a few digits from it.
double epsilon_of(const Tensor& x) {
    return in_fp64(x) ? 8 * std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
}

// In fp64 the kernels' rounding is that of the inputs: one correction.
template <class Solve>
Solution corrected(const Tensor& c, const Tensor& r, const Tensor& b, const Solve& solve) {
    auto [x, info] = solve(b);
    if (c.size(-1) == 0) torch::stable::zero_(info);  // no kernel ran
    if (!in_fp64(c)) return {x, info};
    const Tensor rest = torch::stable::subtract(b, multiply(c, r, x, false, {}));
    return {torch::stable::subtract(x, std::get<0>(solve(rest)), -1.0), info};
}

Solution solve(const Tensor& c, const Tensor& r, const Tensor& b) {
    const double epsilon = epsilon_of(c);
    return corrected(c, r, b, [&](const Tensor& right) {
        return c.is_cuda() ? structured::toeplitz_gko(plain(c), plain(r), plain(right), epsilon)
                           : two_of(dispatch<2>("gdn_cuda::toeplitz_gko", c, r, right, epsilon));
    });
}

}  // namespace

Tensor toeplitz_matvec(const Tensor& c, const Tensor& r, const Tensor& x, const OptionalTensor& out) {
    return multiply(c, r, x, false, out);
}

Tensor toeplitz_matvec_transpose(const Tensor& c, const Tensor& r, const Tensor& x, const OptionalTensor& out) {
    return multiply(c, r, x, true, out);
}

Solution toeplitz_solve_ex(const Tensor& c, const Tensor& r, const Tensor& b) {
    structured::check_toeplitz_solve(c, r, b, false);
    return solve(c, r, b);
}

Solution toeplitz_solve_symmetric_ex(const Tensor& c, const Tensor& b, bool assume_positive) {
    if (!assume_positive) {
        structured::check_toeplitz_solve(c, c, b, true);
        return solve(c, c, b);
    }
    structured::check_toeplitz_positive(c, b);
    const double epsilon = epsilon_of(c);
    if (c.is_cuda() && c.size(-1) > structured::kToeplitzSchurLongest)
        return structured::toeplitz_pcg(plain(c), plain(b), epsilon);
    return corrected(c, c, b, [&](const Tensor& right) {
        return c.is_cuda() ? structured::toeplitz_schur(plain(c), plain(right), epsilon)
                           : two_of(dispatch<2>("gdn_cuda::toeplitz_schur", c, right, epsilon));
    });
}

}  // namespace gdn_cuda
