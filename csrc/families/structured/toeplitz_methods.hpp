// Choice of the method that solves a Toeplitz system.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "toeplitz_eliminate.hpp"
#include "toeplitz_gko.hpp"
#include "toeplitz_pcg.hpp"
#include "toeplitz_schur.hpp"

namespace gdn_cuda::structured {

// Systems that fit one block still use clusters if all clusters run at once: they have shorter steps but use more SMs.
inline constexpr int kToeplitzEliminateShortest = 513;
inline bool toeplitz_eliminate_pays(const ToeplitzEliminateProblem& problem, const jit::DeviceTraits& device) {
    if (problem.n > kToeplitzGkoLongest) return true;
    const ToeplitzEliminateConfig config = toeplitz_eliminate_config(problem, device);
    return problem.n >= kToeplitzEliminateShortest &&
           problem.systems * ceil_div(problem.columns, config.columns) <= toeplitz_eliminate_at_once(config, device);
}

// Conjugate gradients need few long steps, Schur's recursion n short ones: some 0.2 and 1.27 ms for 2048 rows on an H200.
inline constexpr int kToeplitzPcgShortest = 1025;

// Row limits of each method; tests set others.
struct ToeplitzLimits {
    i64 gko = kToeplitzGkoLongest, schur = kToeplitzSchurLongest;
    i64 pcg_from = kToeplitzPcgShortest, pcg_to = kToeplitzPcgLongest;

    i64 positive() const { return std::max(schur, pcg_to); }  // limit of all kernels for positive definite matrices
};

// Methods for positive definite matrices: conjugate gradients in one kernel or in torch's operators, and Schur's recursion.
enum class ToeplitzPositiveMethod { pcg, schur, pcg_in_torch };

// Methods to try before pivoting if the caller waits for info, the quickest first.
inline std::vector<ToeplitzPositiveMethod> toeplitz_positive_methods(i64 n, const ToeplitzLimits& limits = {}) {
    std::vector<ToeplitzPositiveMethod> methods;
    if (limits.pcg_from <= n && n <= limits.pcg_to) methods.push_back(ToeplitzPositiveMethod::pcg);
    if (n <= limits.schur) methods.push_back(ToeplitzPositiveMethod::schur);
    if (n > limits.pcg_to) methods.push_back(ToeplitzPositiveMethod::pcg_in_torch);
    return methods;
}

// Explanations of methods that are not a single kernel, and of the next method that is tried.
inline std::string explain_dense_lu(i64 n) {
    const std::string why =
        n > kToeplitzEliminateLongest
            ? fmt::format("{} rows are more than the {} of a cluster of blocks", n, kToeplitzEliminateLongest)
            : fmt::format("{} rows are more than the {} of one block, and the GPU has no clusters of blocks for them", n,
                          kToeplitzGkoLongest);
    return fmt::format("dense LU in fp64 by torch's operators: {}; n² values of memory per system", why);
}
inline std::string explain_pcg_in_torch(i64 n) {
    return fmt::format("conjugate gradients in torch's operators: {} rows are more than the {} of one block", n,
                       kToeplitzPcgLongest);
}
inline std::string explain_failure(ToeplitzPositiveMethod method) {
    return method == ToeplitzPositiveMethod::schur ? "then, where T is not positive definite:"
                                                   : "then, where conjugate gradients do not converge:";
}

}  // namespace gdn_cuda::structured
