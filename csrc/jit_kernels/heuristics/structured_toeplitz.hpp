// Which configuration of a Toeplitz kernel runs a problem, and why.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <gdn_cuda/kernels/structured/toeplitz_gko_plan.cuh>
#include <gdn_cuda/kernels/structured/toeplitz_matvec_plan.cuh>
#include <gdn_cuda/kernels/structured/toeplitz_pcg_plan.cuh>
#include <gdn_cuda/kernels/structured/toeplitz_schur_plan.cuh>
#include <string>

#include "../../jit/device.hpp"
#include "../../jit/text.hpp"
#include "structured.hpp"

namespace gdn_cuda::structured {

struct ToeplitzMatvecProblem {
    i64 systems, columns;
    int n;
    DType io;
};

inline constexpr int kToeplitzAlwaysDirect = 64, kToeplitzDirectBlocks = 8;  // a multiprocessor

constexpr ToeplitzMatvecConfig toeplitz_matvec_config(DType io, int transform) {
    // Registers decide: beyond 1024 numbers twice as many threads would have too few, but for c128, which has a smaller limit.
    const int each = transform > 1024 && io != DType::c128 ? 2 * kFftEach : kFftEach;
    return {.io = io, .transform = transform, .threads = transform == 0 ? 256 : transform / each};
}
// Capacities of transforms: a block takes the smallest that holds its own. Larger ones spill registers.
constexpr std::array<int, 3> toeplitz_transforms(DType io) {
    return {256, 1024, io == DType::f32 ? 8192 : io == DType::c128 ? 2048 : 4096};
}
// The longest system a block can multiply with; beyond it the caller has other ways.
constexpr int toeplitz_matvec_longest(DType io) {
    return toeplitz_matvec_config(io, toeplitz_transforms(io).back()).longest();
}
constexpr int toeplitz_transform_of(DType io, int n) {
    const auto least = static_cast<int>(std::bit_ceil(static_cast<unsigned>(n)));
    return std::max(2 * kFftEach, is_complex(io) ? 2 * least : least);
}
inline i64 toeplitz_direct_blocks(const ToeplitzMatvecProblem& problem) {
    return problem.systems * problem.columns * ceil_div(problem.n, ToeplitzMatvecConfig::kRows);
}
// Sums have the smaller error and latency, transforms fewer operations: they win when sums would queue.
inline ToeplitzMatvecConfig toeplitz_matvec_config(const ToeplitzMatvecProblem& problem, const jit::DeviceTraits& device) {
    if (problem.n <= kToeplitzAlwaysDirect ||
        (problem.n <= ToeplitzMatvecConfig::kMostDirect &&
         toeplitz_direct_blocks(problem) <= i64{kToeplitzDirectBlocks} * device.multiprocessors))
        return toeplitz_matvec_config(problem.io, 0);
    const int needed = toeplitz_transform_of(problem.io, problem.n);
    const auto transforms = toeplitz_transforms(problem.io);
    return toeplitz_matvec_config(problem.io, *std::ranges::find_if(transforms, [&](int size) { return size >= needed; }));
}
// As many right-hand sides a block as leave one block to every multiprocessor: the matrix is transformed once a block.
inline i64 toeplitz_columns_per_block(const ToeplitzMatvecProblem& problem, const jit::DeviceTraits& device) {
    const i64 blocks_a_system = std::max<i64>(1, device.multiprocessors / std::max<i64>(1, problem.systems));
    return std::max<i64>(1, ceil_div(problem.columns, blocks_a_system));
}

inline std::string explain_toeplitz_matvec(const ToeplitzMatvecProblem& problem, const jit::DeviceTraits& device) {
    const ToeplitzMatvecConfig config = toeplitz_matvec_config(problem, device);
    const i64 columns = toeplitz_columns_per_block(problem, device);
    if (config.direct())
        return fmt::format("sums: {} rows make {} tiles of {}, and {} right-hand sides a block", problem.n,
                           ceil_div(problem.n, ToeplitzMatvecConfig::kRows), ToeplitzMatvecConfig::kRows, columns);
    return fmt::format("transforms of {} complex numbers for {} rows, {} right-hand sides a block behind one of the matrix",
                       toeplitz_transform_of(problem.io, problem.n), problem.n, columns);
}

inline constexpr std::array kToeplitzMatvecConfigurations = [] {
    std::array<ToeplitzMatvecConfig, 16> all{};
    size_t at = 0;
    for (const DType io : {DType::f32, DType::f64, DType::c64, DType::c128}) {
        all[at++] = toeplitz_matvec_config(io, 0);
        for (const int transform : toeplitz_transforms(io)) all[at++] = toeplitz_matvec_config(io, transform);
    }
    return all;
}();

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

}  // namespace gdn_cuda::structured
