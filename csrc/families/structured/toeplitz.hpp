// Declarations of the Toeplitz operators: argument checks, kernels, and the solver that combines them.
#pragma once

#include "../../operators/operator.hpp"
#include "broadcast.hpp"

namespace gdn_cuda::structured {

// Names for error messages.
struct ToeplitzNames {
    const char *function, *column = "c", *row = "r", *right = "b", *matrix = "matrix";
};
inline ToeplitzNames matvec_names(bool transpose) {
    return {.function = transpose ? "toeplitz_matvec_transpose" : "toeplitz_matvec", .right = "x"};
}
inline ToeplitzNames solve_names(bool symmetric, bool wait) {
    if (symmetric) return {.function = wait ? "toeplitz_solve_symmetric" : "toeplitz_solve_symmetric_ex"};
    return {.function = wait ? "toeplitz_solve" : "toeplitz_solve_ex"};
}

enum class ToeplitzShape { square, rectangular, transposed };  // transposed: applies T^t, where T may be rectangular

struct PreparedToeplitz {
    ToeplitzNames names;
    View column, row, right;
    View vectors;  // right-hand sides (..., n), without the dimension of columns
    DType type;
    Broadcast shape;  // of matrices and right-hand sides
    bool many;
    int64_t from, to;  // length of a right-hand side, and of a result

    Checks check() const { return {names.function}; }
    int64_t n() const { return column.size(-1); }
    int64_t columns() const { return many ? right.size(-1) : 1; }
    int64_t systems() const {
        int64_t count = 1;
        for (const int64_t size : shape.leading) count *= size;
        return count;
    }
    std::vector<int64_t> result() const {
        std::vector<int64_t> sizes = shape.leading;
        sizes.push_back(to);
        if (many) sizes.push_back(columns());
        return sizes;
    }
    // Broadcast leading dimensions of the matrices alone.
    std::vector<int64_t> matrices() const {
        Broadcast lines_alone;
        lines_alone.add(check(), names.column, column, names.column);
        lines_alone.add(check(), names.row, row, names.column);
        return lines_alone.leading;
    }
};

PreparedToeplitz prepare_toeplitz(const ToeplitzNames& names, const Tensor& c, const Tensor& r, const Tensor& right,
                                  ToeplitzShape shape = ToeplitzShape::square);
using Solution = std::tuple<Tensor, Tensor>;  // T^-1 b and info

// ---- Operators

struct ToeplitzMatvecCall {
    static constexpr const char* name = "toeplitz_matvec";
    Given c, r, x;
    bool transpose = false;

    GDN_FIELDS(c, r, x, transpose)
};
Tensor toeplitz_matvec(const ToeplitzMatvecCall& call);
PreparedToeplitz prepare_toeplitz_matvec(const ToeplitzMatvecCall& call);

// (T^-1 b, info), with an info per matrix. With `wait`, info is on the CPU and methods for positive definite matrices are tried
// first.
struct ToeplitzSolveCall {
    static constexpr const char* name = "toeplitz_solve";
    Given c, r, b;
    bool symmetric = false, wait = false;

    GDN_FIELDS(c, r, b, symmetric, wait)
};
Solution toeplitz_solve(const ToeplitzSolveCall& call);
PreparedToeplitz prepare_toeplitz_solve(const ToeplitzSolveCall& call);

struct ToeplitzPositiveCall {
    static constexpr const char* name = "toeplitz_solve_positive";
    Given c, b;

    GDN_FIELDS(c, b)
};
Solution toeplitz_solve_positive(const ToeplitzPositiveCall& call);
PreparedToeplitz prepare_toeplitz_positive(const ToeplitzPositiveCall& call);

// First and last column of T^-1, and info on the CPU.
struct ToeplitzEndsCall {
    static constexpr const char* name = "gs_compute_generators";
    Given c, r;

    GDN_FIELDS(c, r)
};
std::tuple<Tensor, Tensor, Tensor> toeplitz_ends(const ToeplitzEndsCall& call);
PreparedToeplitz prepare_toeplitz_ends(const ToeplitzEndsCall& call);

struct ToeplitzInverseCall {
    static constexpr const char* name = "toeplitz_inverse_apply";
    Given gs_u, gs_v, x;
    double epsilon = 0;

    GDN_FIELDS(gs_u, gs_v, x, epsilon)
};
Tensor toeplitz_inverse_apply(const ToeplitzInverseCall& call);
PreparedToeplitz prepare_toeplitz_inverse_apply(const ToeplitzInverseCall& call);

// ---- Kernels as operators; for CPU tensors Python registers equivalents. info has an entry for every leading index of the
// result.

// Solve positive definite systems, by the kernel of that name.
struct ToeplitzSchurCall {
    static constexpr const char* name = "toeplitz_schur";
    Given c, b;
    double epsilon = 0;

    GDN_FIELDS(c, b, epsilon)
};
struct ToeplitzPcgCall {
    static constexpr const char* name = "toeplitz_pcg";
    Given c, b;
    double epsilon = 0;

    GDN_FIELDS(c, b, epsilon)
};
struct ToeplitzGkoCall {
    static constexpr const char* name = "toeplitz_gko";
    Given c, r, b;
    double epsilon = 0;

    GDN_FIELDS(c, r, b, epsilon)
};
// (left, right, rhs, scales) for flattened systems; the probe is the last right-hand side.
struct ToeplitzGeneratorsCall {
    static constexpr const char* name = "toeplitz_generators";
    Given c, r, b;

    GDN_FIELDS(c, r, b)
};
// (C^-1 rhs, info) for left and right generators; `configuration` indexes the kernel's configurations, -1 chooses the best.
struct ToeplitzEliminateCall {
    static constexpr const char* name = "toeplitz_eliminate";
    Given left, right, rhs;
    int64_t configuration = -1;

    GDN_FIELDS(left, right, rhs, configuration)
};
std::tuple<Tensor, Tensor, Tensor, Tensor> toeplitz_generators(const ToeplitzGeneratorsCall& call);
Solution toeplitz_eliminate(const ToeplitzEliminateCall& call);

Tensor toeplitz_matvec_kernel(const PreparedToeplitz& prepared, bool transpose, const Tensor& like);
Solution toeplitz_gko_kernel(const PreparedToeplitz& prepared, const Tensor& like, double epsilon);
Solution toeplitz_schur_kernel(const PreparedToeplitz& prepared, const Tensor& like, double epsilon);
Solution toeplitz_pcg_kernel(const PreparedToeplitz& prepared, const Tensor& like, double epsilon);
// Whether `toeplitz_eliminate` is the best kernel for these systems on their device.
bool toeplitz_eliminate_pays_here(const PreparedToeplitz& prepared);

// ---- Composed of torch operators, for any device

// T x, or T^t x, for any number of rows.
Tensor toeplitz_matvec_by_transforms(const Tensor& c, const Tensor& r, const Tensor& x, bool transpose);
// column (S,n) and rhs (S,n,k) in fp64. Residuals may be up to `residual` ‖T‖ ‖x‖, that of the last right-hand side, the
// probe, up to `probe_residual` ‖T‖ ‖x‖. Empty if T is found not positive definite or the steps do not suffice. Synchronises
// with the device.
std::optional<Tensor> toeplitz_pcg_in_torch(const Tensor& column, const Tensor& rhs, double residual, double probe_residual);

// Disables torch's gradient recording during its lifetime: Python defines the gradients of these operators.
class WithoutGradients {
  public:
    WithoutGradients() : were_recorded_(aoti_torch_grad_mode_is_enabled()) { aoti_torch_grad_mode_set_enabled(false); }
    ~WithoutGradients() { aoti_torch_grad_mode_set_enabled(were_recorded_); }
    WithoutGradients(const WithoutGradients&) = delete;
    WithoutGradients& operator=(const WithoutGradients&) = delete;

  private:
    bool were_recorded_;
};

}  // namespace gdn_cuda::structured
