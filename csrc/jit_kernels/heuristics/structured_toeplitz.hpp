// Which configuration of a Toeplitz kernel runs a problem, and why.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <gdn_cuda/kernels/structured/toeplitz_eliminate_plan.cuh>
#include <gdn_cuda/kernels/structured/toeplitz_generators_plan.cuh>
#include <gdn_cuda/kernels/structured/toeplitz_gko_plan.cuh>
#include <gdn_cuda/kernels/structured/toeplitz_matvec_plan.cuh>
#include <gdn_cuda/kernels/structured/toeplitz_pcg_plan.cuh>
#include <gdn_cuda/kernels/structured/toeplitz_schur_plan.cuh>
#include <gdn_cuda/kernels/structured/toeplitz_sums_plan.cuh>
#include <string>
#include <vector>

#include "../../jit/device.hpp"
#include "../../jit/text.hpp"
#include "structured.hpp"

namespace gdn_cuda::structured {

struct ToeplitzMatvecProblem {
    i64 systems, columns;
    int n;
    DType io;
};

// ---- Products by sums

inline constexpr int kToeplitzAlwaysSums = 64;

// Complex numbers in short strips only: where long ones would win, transforms do.
inline constexpr std::array kToeplitzSumsConfigurations = [] {
    std::array<ToeplitzSumsConfig, 6> all{};
    size_t at = 0;
    for (const DType io : {DType::f32, DType::f64, DType::c64, DType::c128})
        for (const int strip : {4, 8})
            if (strip == 4 || !is_complex(io)) all[at++] = {.io = io, .strip = strip, .threads = 256};
    return all;
}();
inline i64 toeplitz_sums_blocks(const ToeplitzMatvecProblem& problem, const ToeplitzSumsConfig& config) {
    return problem.systems * ceil_div(problem.n, config.rows());  // with all right-hand sides of a system
}
// What sums take on an H200 beyond a launch and a wait for memory, in microseconds: blocks that share a multiprocessor queue.
inline double toeplitz_sums_us(const ToeplitzMatvecProblem& problem, const ToeplitzSumsConfig& config,
                               const jit::DeviceTraits& device) {
    constexpr double kBlock = 0.57, kFmaEach = 1 / 160e3;
    const double blocks = static_cast<double>(toeplitz_sums_blocks(problem, config) * problem.columns) / device.multiprocessors;
    const int fmas = (is_complex(problem.io) ? 4 : 1) * (config.wide() ? 2 : 1);  // fp64's count twice
    return std::max(1.0, blocks) * (kBlock + kFmaEach * fmas * config.rows() * problem.n);
}
// Short strips make more blocks of less work.
inline ToeplitzSumsConfig toeplitz_sums_config(const ToeplitzMatvecProblem& problem, const jit::DeviceTraits& device) {
    const ToeplitzSumsConfig* best = nullptr;
    for (const ToeplitzSumsConfig& config : kToeplitzSumsConfigurations)
        if (config.io == problem.io &&
            (best == nullptr || toeplitz_sums_us(problem, config, device) < toeplitz_sums_us(problem, *best, device)))
            best = &config;
    return *best;
}

// ---- Products by transforms

// The longest with eight numbers a thread, which registers and shared memory decide, and with sixteen.
constexpr int toeplitz_eight_each(DType io) {
    return io == DType::f32 || io == DType::c64 ? 4096 : 2048;
}
constexpr int toeplitz_sixteen_each(DType io) {
    return is_complex(io) ? 0 : 2 * toeplitz_eight_each(io);
}
constexpr ToeplitzMatvecConfig toeplitz_matvec_config(DType io, int transform) {
    const int each = transform > toeplitz_eight_each(io) ? 2 * kFftEach : kFftEach;
    return {.io = io, .transform = transform, .threads = transform / each};
}
// Capacities: a block takes the smallest that holds its transform.
inline constexpr std::array kToeplitzMatvecConfigurations = [] {
    std::array<ToeplitzMatvecConfig, 14> all{};
    size_t at = 0;
    for (const DType io : {DType::f32, DType::f64, DType::c64, DType::c128})
        for (const int transform : {256, 1024, toeplitz_eight_each(io), toeplitz_sixteen_each(io)})
            if (transform > 0) all[at++] = toeplitz_matvec_config(io, transform);
    return all;
}();
// The longest system a block can multiply with; beyond it the caller has other ways.
constexpr int toeplitz_matvec_longest(DType io) {
    int longest = 0;
    for (const ToeplitzMatvecConfig& config : kToeplitzMatvecConfigurations)
        if (config.io == io) longest = std::max(longest, config.longest());
    return longest;
}
constexpr int toeplitz_transform_of(DType io, int n) {
    const auto least = static_cast<int>(std::bit_ceil(static_cast<unsigned>(n)));
    return std::max(2 * kFftEach, is_complex(io) ? 2 * least : least);
}
inline ToeplitzMatvecConfig toeplitz_matvec_config(const ToeplitzMatvecProblem& problem) {
    const int needed = toeplitz_transform_of(problem.io, problem.n);
    return *std::ranges::find_if(kToeplitzMatvecConfigurations, [&](const ToeplitzMatvecConfig& config) {
        return config.io == problem.io && config.transform >= needed;
    });
}

// As toeplitz_sums_us: one block is latency, many are work.
inline double toeplitz_matvec_us(const ToeplitzMatvecProblem& problem, const jit::DeviceTraits& device) {
    const ToeplitzMatvecConfig config = toeplitz_matvec_config(problem);
    const double numbers = toeplitz_transform_of(problem.io, problem.n) * config.groups(),
                 blocks = static_cast<double>(problem.systems * problem.columns) / device.multiprocessors;
    return std::max(1.6 + 1.8e-3 * numbers, blocks * (0.25 + 1.6e-3 * numbers));
}

// ---- Which, and how much a block

// Sums have the smaller error as well: short ones in any case.
inline bool toeplitz_by_sums(const ToeplitzMatvecProblem& problem, const jit::DeviceTraits& device) {
    return problem.n <= kToeplitzAlwaysSums ||
           toeplitz_sums_us(problem, toeplitz_sums_config(problem, device), device) <= toeplitz_matvec_us(problem, device);
}
// As many right-hand sides a block as leave so many blocks to every multiprocessor: T is brought, or transformed, once a block.
inline i64 toeplitz_columns_per_block(i64 columns, i64 blocks, i64 wanted) {
    return std::max<i64>(1, ceil_div(columns, std::max<i64>(1, wanted / std::max<i64>(1, blocks))));
}
inline i64 toeplitz_sums_columns_per_block(const ToeplitzMatvecProblem& problem, const ToeplitzSumsConfig& config,
                                           const jit::DeviceTraits& device) {
    constexpr i64 kResident = 4;  // hide each other's waiting
    return toeplitz_columns_per_block(problem.columns, toeplitz_sums_blocks(problem, config),
                                      kResident * device.multiprocessors);
}
inline i64 toeplitz_matvec_columns_per_block(const ToeplitzMatvecProblem& problem, const jit::DeviceTraits& device) {
    return toeplitz_columns_per_block(problem.columns, problem.systems, device.multiprocessors);
}
inline std::string explain_toeplitz_matvec(const ToeplitzMatvecProblem& problem, const jit::DeviceTraits& device) {
    if (toeplitz_by_sums(problem, device)) {
        const ToeplitzSumsConfig config = toeplitz_sums_config(problem, device);
        return fmt::format("sums: {} tiles of {} rows, {} right-hand sides a block", ceil_div(problem.n, config.rows()),
                           config.rows(), toeplitz_sums_columns_per_block(problem, config, device));
    }
    return fmt::format("transforms of {} complex numbers for {} rows, {} right-hand sides a block behind one of the matrix",
                       toeplitz_transform_of(problem.io, problem.n), problem.n,
                       toeplitz_matvec_columns_per_block(problem, device));
}

struct ToeplitzGkoProblem {
    i64 systems, columns;  // columns: without the probe
    int n;
    DType io;
};

// A row and a column a thread while latency decides; two of each in the largest, where three right-hand sides would spill.
inline constexpr std::array kToeplitzGkoConfigurations = [] {
    std::array<ToeplitzGkoConfig, 20> all{};
    size_t at = 0;
    for (const DType io : {DType::f32, DType::f64, DType::c64, DType::c128}) {
        for (const int threads : {64, 256})
            for (const int columns : {2, 3}) all[at++] = {.io = io, .threads = threads, .slots = 1, .columns = columns};
        all[at++] = {.io = io, .threads = 512, .slots = 2, .columns = 2};
    }
    return all;
}();
inline constexpr int kToeplitzGkoLongest = kToeplitzGkoConfigurations.back().rows();

// Every block eliminates anew, so few blocks with more right-hand sides each.
inline ToeplitzGkoConfig toeplitz_gko_config(const ToeplitzGkoProblem& problem) {
    const auto fits = [&](const ToeplitzGkoConfig& config) { return config.io == problem.io && config.rows() >= problem.n; };
    const auto* smallest = std::ranges::find_if(kToeplitzGkoConfigurations, fits);
    const auto* wider = smallest + 1;
    const bool wide = problem.columns > 1 && wider != kToeplitzGkoConfigurations.end() && wider->rows() == smallest->rows();
    return wide ? *wider : *smallest;
}
inline std::string explain_toeplitz_gko(const ToeplitzGkoProblem& problem) {
    const ToeplitzGkoConfig config = toeplitz_gko_config(problem);
    return fmt::format("{} rows on {} threads, {} each; {} blocks of {} right-hand sides, a probe among them", problem.n,
                       config.threads, config.slots, problem.systems * (problem.columns / config.columns + 1), config.columns);
}

inline constexpr std::array kToeplitzGeneratorsConfigurations{
    ToeplitzGeneratorsConfig{DType::f32}, ToeplitzGeneratorsConfig{DType::f64}, ToeplitzGeneratorsConfig{DType::c64},
    ToeplitzGeneratorsConfig{DType::c128}};

struct ToeplitzEliminateProblem {
    i64 systems, columns;  // columns: with the probe
    int n;
};

// More threads, with fewer slots each, lose: a step waits for arithmetic of one thread after the other, not for its sum.
// Smaller clusters are for many systems, more right-hand sides for many of those.
inline constexpr std::array kToeplitzEliminateConfigurations{
    ToeplitzEliminateConfig{8, 128, 1, 2}, ToeplitzEliminateConfig{4, 128, 2, 2},  ToeplitzEliminateConfig{2, 128, 4, 2},
    ToeplitzEliminateConfig{2, 128, 4, 4}, ToeplitzEliminateConfig{8, 128, 2, 2},  ToeplitzEliminateConfig{4, 128, 4, 2},
    ToeplitzEliminateConfig{4, 128, 4, 4}, ToeplitzEliminateConfig{16, 128, 2, 2}, ToeplitzEliminateConfig{8, 128, 4, 2},
    ToeplitzEliminateConfig{8, 128, 4, 4}, ToeplitzEliminateConfig{16, 128, 4, 2}, ToeplitzEliminateConfig{16, 128, 4, 4}};
inline constexpr int kToeplitzEliminateLongest = kToeplitzEliminateConfigurations.back().rows();

// What was measured on an H200, in ns a step: without rows, of a row a thread, of two more right-hand sides, and of stores to
// the other half of a group of multiprocessors.
inline constexpr int kToeplitzEliminateStep = 580, kToeplitzEliminateSlot = 95, kToeplitzEliminateColumns = 90,
                     kToeplitzEliminateFar = 60;

// Clusters lie within groups of multiprocessors, whose rests stay idle. Two blocks with few rows share a multiprocessor.
inline i64 toeplitz_eliminate_at_once(const ToeplitzEliminateConfig& config, const jit::DeviceTraits& device) {
    const i64 clusters = std::max(1, (device.multiprocessors - config.blocks) / config.blocks);
    return config.slots == 1 ? 2 * clusters : clusters;
}
inline i64 toeplitz_eliminate_cost(const ToeplitzEliminateProblem& problem, const ToeplitzEliminateConfig& config,
                                   const jit::DeviceTraits& device) {
    const i64 clusters = problem.systems * ceil_div(problem.columns, config.columns);
    const i64 step = kToeplitzEliminateStep + config.slots * kToeplitzEliminateSlot +
                     (config.columns > 2 ? kToeplitzEliminateColumns : 0) + (config.blocks > 8 ? kToeplitzEliminateFar : 0);
    return ceil_div(clusters, toeplitz_eliminate_at_once(config, device)) * step;
}
// Clusters of 8 blocks are on every GPU that has clusters, larger ones on some.
inline constexpr int kToeplitzEliminatePortable = 8, kToeplitzEliminateLongestPortable = 4096;
// Of equally good ones the first.
inline ToeplitzEliminateConfig toeplitz_eliminate_config(const ToeplitzEliminateProblem& problem,
                                                         const jit::DeviceTraits& device, int most_blocks = 16) {
    const ToeplitzEliminateConfig* best = nullptr;
    for (const auto& config : kToeplitzEliminateConfigurations)
        if (config.rows() >= problem.n && config.blocks <= most_blocks &&
            (best == nullptr ||
             toeplitz_eliminate_cost(problem, config, device) < toeplitz_eliminate_cost(problem, *best, device)))
            best = &config;
    return *best;
}
// Where one block could: while clusters do not queue, for they take more multiprocessors for a shorter step.
inline constexpr int kToeplitzEliminateShortest = 513;
inline bool toeplitz_eliminate_pays(const ToeplitzEliminateProblem& problem, const jit::DeviceTraits& device) {
    if (problem.n > kToeplitzGkoLongest) return true;
    const ToeplitzEliminateConfig config = toeplitz_eliminate_config(problem, device);
    return problem.n >= kToeplitzEliminateShortest &&
           problem.systems * ceil_div(problem.columns, config.columns) <= toeplitz_eliminate_at_once(config, device);
}
inline std::string explain_toeplitz_eliminate(const ToeplitzEliminateProblem& problem, const jit::DeviceTraits& device) {
    const ToeplitzEliminateConfig config = toeplitz_eliminate_config(problem, device);
    return fmt::format("{} rows on {} blocks of {} threads, {} each; {} clusters of {} right-hand sides, {} at once", problem.n,
                       config.blocks, config.threads, config.slots, problem.systems * ceil_div(problem.columns, config.columns),
                       config.columns, toeplitz_eliminate_at_once(config, device));
}

struct ToeplitzSchurProblem {
    i64 systems, columns;
    int n;
    DType io;
};

// A row a thread while latency decides. The longest have no registers for more than one right-hand side and the probe.
inline constexpr std::array kToeplitzSchurConfigurations = [] {
    std::array<ToeplitzSchurConfig, 14> all{};
    size_t at = 0;
    for (const DType io : {DType::f32, DType::f64}) {
        for (const auto& [threads, slots] : {std::pair{64, 1}, {256, 1}, {512, 2}})
            for (const int columns : {1, 3}) all[at++] = {.io = io, .threads = threads, .slots = slots, .columns = columns};
        all[at++] = {.io = io, .threads = 512, .slots = 8, .columns = 1};
    }
    return all;
}();
inline constexpr int kToeplitzSchurLongest = kToeplitzSchurConfigurations.back().rows();

inline ToeplitzSchurConfig toeplitz_schur_config(const ToeplitzSchurProblem& problem) {
    const auto fits = [&](const ToeplitzSchurConfig& config) { return config.io == problem.io && config.rows() >= problem.n; };
    const auto* smallest = std::ranges::find_if(kToeplitzSchurConfigurations, fits);
    const auto* wider = smallest + 1;
    const bool wide = problem.columns > 1 && wider != kToeplitzSchurConfigurations.end() && wider->rows() == smallest->rows();
    return wide ? *wider : *smallest;
}
inline std::string explain_toeplitz_schur(const ToeplitzSchurProblem& problem) {
    const ToeplitzSchurConfig config = toeplitz_schur_config(problem);
    return fmt::format("{} rows on {} threads, {} each; {} blocks of {} right-hand sides and a probe", problem.n,
                       config.threads, config.slots, problem.systems * ceil_div(problem.columns, config.columns),
                       config.columns);
}

struct ToeplitzPcgProblem {
    i64 systems, columns;
    int n;
    DType io;
};

inline constexpr std::array kToeplitzPcgConfigurations = [] {
    std::array<ToeplitzPcgConfig, 2> all{};
    size_t at = 0;
    for (const DType io : {DType::f32, DType::f64}) all[at++] = {.io = io, .transform = 4096, .threads = 512};
    return all;
}();
inline constexpr int kToeplitzPcgLongest = kToeplitzPcgConfigurations.back().rows();

inline ToeplitzPcgConfig toeplitz_pcg_config(const ToeplitzPcgProblem& problem) {
    return *std::ranges::find(kToeplitzPcgConfigurations, problem.io, &ToeplitzPcgConfig::io);
}
// Blocks are as many as run at once, and take one right-hand side after the other: each has memory of its own.
inline i64 toeplitz_pcg_blocks(const ToeplitzPcgProblem& problem, const jit::DeviceTraits& device) {
    return std::min<i64>(problem.systems * (problem.columns + 1), device.multiprocessors);
}
inline std::string explain_toeplitz_pcg(const ToeplitzPcgProblem& problem, const jit::DeviceTraits& device) {
    const ToeplitzPcgConfig config = toeplitz_pcg_config(problem);
    return fmt::format(
        "transforms of {} numbers for {} rows on {} threads; {} right-hand sides and a probe each of {} systems, in {} blocks",
        config.transform, problem.n, config.threads, problem.columns, problem.systems, toeplitz_pcg_blocks(problem, device));
}

// ---- Which way a system takes

// Conjugate gradients take few long steps, Schur's recursion n short ones: some 0.2 and 1.27 ms for 2048 rows on an H200.
inline constexpr int kToeplitzPcgShortest = 1025;

// Rows that each way takes; tests set others.
struct ToeplitzLimits {
    i64 gko = kToeplitzGkoLongest, schur = kToeplitzSchurLongest;
    i64 pcg_from = kToeplitzPcgShortest, pcg_to = kToeplitzPcgLongest;
};

// For positive definite matrices: conjugate gradients in one kernel or in torch's operators, and Schur's recursion.
enum class ToeplitzPositiveWay { pcg, schur, pcg_in_torch };

// Those to try before pivots where the caller waits to know how it went, the quickest first.
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
// Symmetric systems where the caller waits to know how it went.
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
