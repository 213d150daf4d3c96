// Which method solves a Toeplitz system.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "toeplitz_eliminate.hpp"
#include "toeplitz_gko.hpp"
#include "toeplitz_pcg.hpp"
#include "toeplitz_schur.hpp"

namespace gdn_cuda::structured {

// Systems that fit one block use clusters while those do not queue: clusters have shorter steps but take more SMs.
inline constexpr int kToeplitzEliminateShortest = 513;
inline bool toeplitz_eliminate_pays(const ToeplitzEliminateProblem& problem, const jit::DeviceTraits& device) {
    if (problem.n > kToeplitzGkoLongest) return true;
    const ToeplitzEliminateConfig config = toeplitz_eliminate_config(problem, device);
    return problem.n >= kToeplitzEliminateShortest &&
           problem.systems * ceil_div(problem.columns, config.columns) <= toeplitz_eliminate_at_once(config, device);
}

// Conjugate gradients take few long steps, Schur's recursion n short ones: some 0.2 and 1.27 ms for 2048 rows on an H200.
inline constexpr int kToeplitzPcgShortest = 1025;

// Row limits of each method; tests set others.
struct ToeplitzLimits {
    i64 gko = kToeplitzGkoLongest, schur = kToeplitzSchurLongest;
    i64 pcg_from = kToeplitzPcgShortest, pcg_to = kToeplitzPcgLongest;

    i64 positive() const { return std::max(schur, pcg_to); }  // of all kernels for positive definite matrices
};

// Methods for positive definite matrices: conjugate gradients in one kernel or in torch's operators, and Schur's recursion.
enum class ToeplitzPositiveWay { pcg, schur, pcg_in_torch };

// Methods to try before pivoting if the caller waits for info, the quickest first.
inline std::vector<ToeplitzPositiveWay> toeplitz_positive_ways(i64 n, const ToeplitzLimits& limits = {}) {
    std::vector<ToeplitzPositiveWay> ways;
    if (limits.pcg_from <= n && n <= limits.pcg_to) ways.push_back(ToeplitzPositiveWay::pcg);
    if (n <= limits.schur) ways.push_back(ToeplitzPositiveWay::schur);
    if (n > limits.pcg_to) ways.push_back(ToeplitzPositiveWay::pcg_in_torch);
    return ways;
}

// What an explained call says of methods that are not one kernel, and of the next one that is tried.
inline std::string explain_dense_lu(i64 n) {
    const std::string why =
        n > kToeplitzEliminateLongest
            ? fmt::format("{} rows are more than the {} of a cluster of blocks", n, kToeplitzEliminateLongest)
            : fmt::format("{} rows are more than the {} of one block, and the GPU has no clusters of blocks for them", n,
                          kToeplitzGkoLongest);
    return fmt::format("dense LU in fp64 by torch's operators: {}; n² numbers of memory a system", why);
}
inline std::string explain_pcg_in_torch(i64 n) {
    return fmt::format("conjugate gradients in torch's operators: {} rows are more than the {} of one block", n,
                       kToeplitzPcgLongest);
}
inline std::string explain_failure(ToeplitzPositiveWay way) {
    return way == ToeplitzPositiveWay::schur ? "then, where T is not positive definite:"
                                             : "then, where conjugate gradients do not converge:";
}

}  // namespace gdn_cuda::structured
