// Structured matrices: gdn_cuda/structured has the formulas, docs/structured.md the edge cases. Leading
// dimensions broadcast. All tensors of a call have one dtype: nothing is converted here. `out` is contiguous, of the result's
// shape and dtype, and apart from the inputs. Gradients are Python's.
#pragma once

#include <gdn_cuda/arguments.hpp>
#include <memory>
#include <tuple>

// Functions that take tensors would be hidden too.
#pragma GCC visibility push(default)

namespace gdn_cuda {

struct GDN_HOLDS_TENSORS CauchyKernel {
    Given v, omega, lambd;
    OptionalWritten out = {};

    GDN_FIELDS(v, omega, lambd, out)
};
// (…,L): Σ_n v_n / (ω_l − λ_n); float32, float64, bfloat16, float16, complex64 or complex128.
Tensor cauchy_kernel(const CauchyKernel& arguments);

struct GDN_HOLDS_TENSORS CauchyConj {
    Given v, z, w;
    OptionalWritten out = {};

    GDN_FIELDS(v, z, w, out)
};
// (…,L): the same with every v_n, w_n and its conjugate; complex64 or complex128, as the two below.
Tensor cauchy_conj(const CauchyConj& arguments);

struct GDN_HOLDS_TENSORS LogVandermonde {
    Given v, x;
    int64_t L = 0;
    OptionalWritten out = {};

    GDN_FIELDS(v, x, L, out)
};
// (…,L) real: 2 Re Σ_n v_n e^{x_n l}.
Tensor log_vandermonde(const LogVandermonde& arguments);

struct GDN_HOLDS_TENSORS LogVandermondeTranspose {
    Given u, v, x;

    GDN_FIELDS(u, v, x)
};
// (…,N): v_n Σ_l u_l e^{x_n l}; u (…,L) is real.
Tensor log_vandermonde_transpose(const LogVandermondeTranspose& arguments);

struct GDN_HOLDS_TENSORS CauchyPoints {
    Given omega, lambd;

    GDN_FIELDS(omega, lambd)
};
// ω and λ in the L2 persistence window of the current stream until release(), or until this handle ends: call cauchy_kernel
// with its tensors, which are the given ones or, where those lie far apart, copies side by side. CUDA tensors of one dtype.
// Throws where the device cannot set that much of its L2 aside, where the stream has such a window, and under graph capture.
struct GDN_HOLDS_TENSORS CauchyPin {
    Tensor omega, lambd;
    std::unique_ptr<void, void (*)(void*)> window;
    void release() { window.reset(); }
};
CauchyPin cauchy_pin_l2(const CauchyPoints& arguments);

// ---- Toeplitz matrices: c is the first column, r the first row, c[0] wins. A right-hand side with more dimensions than c and
// r is (…,n,k), any other (…,n). float32, float64, complex64 or complex128, any number of rows: what Python does on CUDA is
// this.

struct GDN_HOLDS_TENSORS ToeplitzProduct {
    Given c, r, x;
    OptionalWritten out = {};

    GDN_FIELDS(c, r, x, out)
};
// T x, Tᵀ x: c (…,n), r (…,m), x (…,m), or (…,n) for Tᵀ. For n != m zeros complete c, r and x on CUDA up to the rows of one
// block.
Tensor toeplitz_matvec(const ToeplitzProduct& arguments);
Tensor toeplitz_matvec_transpose(const ToeplitzProduct& arguments);

struct GDN_HOLDS_TENSORS ToeplitzSystem {
    Given c, r, b;

    GDN_FIELDS(c, r, b)
};
// (T⁻¹ b, info) with pivots, in fp64. Nothing waits. info is int32, one for every matrix: 0; k, 1 ≤ k ≤ n: pivot k is zero, the
// solution NaN; n + 1: T is singular to working precision.
std::tuple<Tensor, Tensor> toeplitz_solve_ex(const ToeplitzSystem& arguments);
// T⁻¹ b; waits to look at info, and throws std::runtime_error where it is not 0.
Tensor toeplitz_solve(const ToeplitzSystem& arguments);

struct GDN_HOLDS_TENSORS SymmetricToeplitzSystem {
    Given c, b;
    bool assume_positive = false;

    GDN_FIELDS(c, b, assume_positive)
};
// As toeplitz_solve_ex for r = c; with assume_positive (real; CUDA: at most 8192 rows) several times as fast for positive
// definite T, and info −k, the solution NaN, where the leading minor of order k is not positive; on CUDA beyond 4096 rows −1,
// where conjugate gradients did not come to an end.
std::tuple<Tensor, Tensor> toeplitz_solve_symmetric_ex(const SymmetricToeplitzSystem& arguments);
// As toeplitz_solve; tries the ways for positive definite matrices first, whatever is assumed.
Tensor toeplitz_solve_symmetric(const SymmetricToeplitzSystem& arguments);

struct GDN_HOLDS_TENSORS ToeplitzMatrix {
    Given c, r;

    GDN_FIELDS(c, r)
};
// First and last column of T⁻¹, (…,n) each; waits and throws as toeplitz_solve.
std::tuple<Tensor, Tensor> gs_compute_generators(const ToeplitzMatrix& arguments);

struct GDN_HOLDS_TENSORS ToeplitzInverse {
    Given gs_u, gs_v, x;

    GDN_FIELDS(gs_u, gs_v, x)
};
// T⁻¹ x from them; NaN on CUDA where u[0] is zero to working precision.
Tensor toeplitz_inverse_apply(const ToeplitzInverse& arguments);

}  // namespace gdn_cuda

#pragma GCC visibility pop
