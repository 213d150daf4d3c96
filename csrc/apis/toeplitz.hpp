// What the Toeplitz operators share: the checks of their arguments, the kernels, and the plan that puts them together.
#pragma once

#include "structured.hpp"

namespace gdn_cuda::structured {

// The words of an error.
struct ToeplitzNames {
    const char *function, *column = "c", *row = "r", *right = "b", *matrix = "matrix";
};
inline ToeplitzNames names_of_matvec(bool transpose) {
    return {.function = transpose ? "toeplitz_matvec_transpose" : "toeplitz_matvec", .right = "x"};
}
inline ToeplitzNames names_of_solve(bool symmetric, bool wait) {
    if (symmetric) return {.function = wait ? "toeplitz_solve_symmetric" : "toeplitz_solve_symmetric_ex"};
    return {.function = wait ? "toeplitz_solve" : "toeplitz_solve_ex"};
}

enum class ToeplitzShape { square, rectangular, transposed };  // transposed: T^t is applied, and T may be rectangular

struct PreparedToeplitz {
    ToeplitzNames names;
    View column, row, right;
    View lines;  // the right-hand sides without their last dimension, where there are columns
    DType type;
    Broadcast shape;  // of the matrices and the right-hand sides
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
    // Leading dimensions of the matrices alone.
    std::vector<int64_t> matrices() const {
        Broadcast lines_alone;
        lines_alone.add(check(), names.column, column, names.column);
        lines_alone.add(check(), names.row, row, names.column);
        return lines_alone.leading;
    }
};

PreparedToeplitz prepare_toeplitz(const ToeplitzNames& names, const Tensor& c, const Tensor& r, const Tensor& right,
                                  ToeplitzShape shape = ToeplitzShape::square);
PreparedToeplitz prepare_toeplitz_positive(const Tensor& c, const Tensor& b);

using Solution = std::tuple<Tensor, Tensor>;  // T^-1 b and info

// ---- Kernels on CUDA tensors; info has a number for every leading index of the result.

Tensor toeplitz_matvec_kernel(const PreparedToeplitz& prepared, bool transpose, const Tensor& like);
Solution toeplitz_gko_kernel(const PreparedToeplitz& prepared, const Tensor& like, double epsilon);
Solution toeplitz_schur_kernel(const PreparedToeplitz& prepared, const Tensor& like, double epsilon);
Solution toeplitz_pcg_kernel(const PreparedToeplitz& prepared, const Tensor& like, double epsilon);
std::tuple<Tensor, Tensor, Tensor, Tensor> toeplitz_generators(const Tensor& c, const Tensor& r, const Tensor& b);
Solution toeplitz_eliminate(const Tensor& left, const Tensor& right, const Tensor& numbers, int64_t configuration);
// Whether `toeplitz_eliminate` is what to solve these with on their device.
bool toeplitz_eliminate_pays_here(const PreparedToeplitz& prepared);

// ---- In torch's operators, on any device

// T x, or T^t x, for any number of rows.
Tensor toeplitz_matvec_by_transforms(const Tensor& c, const Tensor& r, const Tensor& x, bool transpose);
// Column (S,n), numbers (S,n,k) in fp64; `residual` is what right-hand sides may leave, `of_probe` what the last one may, times
// ‖T‖ ‖x‖. No tensor where T is not positive definite, as far as that shows, or the steps do not suffice. Waits.
std::optional<Tensor> toeplitz_pcg_in_torch(const Tensor& column, const Tensor& numbers, double residual, double of_probe);

// Torch records no gradients while this lives: those of these operators are Python's.
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
