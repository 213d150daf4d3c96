// Which method solves a Toeplitz system, and why.
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

inline std::string explain_toeplitz_general(i64 n) {
    if (n <= kToeplitzGkoLongest) {
        const char* const clusters =
            n < kToeplitzEliminateShortest
                ? ""
                : "; toeplitz_eliminate by clusters of blocks, where the GPU has them and the systems need not queue for them";
        return fmt::format("toeplitz_gko: {} rows fit one block, which pivots and stores no factor{}", n, clusters);
    }
    if (n <= kToeplitzEliminateLongest)
        return fmt::format(
            "toeplitz_eliminate: {} rows fit a cluster of blocks, which pivots and stores no factor; a dense LU in fp64 where "
            "the "
            "GPU has no clusters of this size",
            n);
    return fmt::format("dense LU in fp64: {} rows are more than the {} of a cluster of blocks; n² numbers of memory a system",
                       n, kToeplitzEliminateLongest);
}
// `symmetric`: T is symmetric and the caller waits for info.
inline std::string explain_toeplitz_solve(i64 n, bool symmetric) {
    std::string text;
    for (const ToeplitzPositiveWay way : symmetric ? toeplitz_positive_ways(n) : std::vector<ToeplitzPositiveWay>{}) {
        switch (way) {
            case ToeplitzPositiveWay::pcg:
                text +=
                    fmt::format("toeplitz_pcg: {} rows fit one block of conjugate gradients; where they do not converge, ", n);
                break;
            case ToeplitzPositiveWay::schur:
                text += fmt::format("toeplitz_schur: {} rows fit one block; where T is not positive definite, ", n);
                break;
            case ToeplitzPositiveWay::pcg_in_torch:
                text += fmt::format(
                    "conjugate gradients in torch operations: {} rows are more than one block's; where they do not converge, ",
                    n);
                break;
        }
    }
    return text + explain_toeplitz_general(n);
}

}  // namespace gdn_cuda::structured
