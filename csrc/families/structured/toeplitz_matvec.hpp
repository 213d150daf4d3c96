// structured/toeplitz_matvec on the host: which configuration runs a product, or whether structured/toeplitz_sums does, and its
// launch.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <gdn_cuda/kernels/structured/toeplitz/matvec_plan.cuh>
#include <string>

#include "../../launch/spec.hpp"
#include "toeplitz_sums.hpp"

namespace gdn_cuda::structured {

// The longest transforms with eight values per thread, limited by registers and shared memory, and with sixteen values.
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
// Configurations differ in capacity: a block uses the smallest that holds its transform.
inline constexpr std::array kToeplitzMatvecConfigurations = [] {
    std::array<ToeplitzMatvecConfig, 14> all{};
    size_t at = 0;
    for (const DType io : {DType::f32, DType::f64, DType::c64, DType::c128})
        for (const int transform : {256, 1024, toeplitz_eight_each(io), toeplitz_sixteen_each(io)})
            if (transform > 0) all[at++] = toeplitz_matvec_config(io, transform);
    return all;
}();
// The longest system that a block can multiply by; the caller handles longer ones.
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

// A model like toeplitz_sums_us: latency for one block, throughput for many.
inline double toeplitz_matvec_us(const ToeplitzMatvecProblem& problem, const jit::DeviceTraits& device) {
    const ToeplitzMatvecConfig config = toeplitz_matvec_config(problem);
    const double values = toeplitz_transform_of(problem.io, problem.n) * config.groups(),
                 blocks = static_cast<double>(problem.systems * problem.columns) / device.multiprocessors;
    return std::max(1.6 + 1.8e-3 * values, blocks * (0.25 + 1.6e-3 * values));
}

// Direct sums also have smaller errors, so short systems always use them.
inline bool toeplitz_by_sums(const ToeplitzMatvecProblem& problem, const jit::DeviceTraits& device) {
    return problem.n <= kToeplitzAlwaysSums ||
           toeplitz_sums_us(problem, toeplitz_sums_config(problem, device), device) <= toeplitz_matvec_us(problem, device);
}
inline i64 toeplitz_matvec_columns_per_block(const ToeplitzMatvecProblem& problem, const jit::DeviceTraits& device) {
    return toeplitz_columns_per_block(problem.columns, problem.systems, device.multiprocessors);
}
inline std::string explain_toeplitz_matvec(const ToeplitzMatvecProblem& problem, const jit::DeviceTraits& device) {
    if (toeplitz_by_sums(problem, device)) return explain_toeplitz_sums(problem, device);
    return fmt::format("transforms of {} complex values for {} rows; a block transforms the matrix, then {} right-hand sides",
                       toeplitz_transform_of(problem.io, problem.n), problem.n,
                       toeplitz_matvec_columns_per_block(problem, device));
}

// Operands with all leading dimensions, as for the other kernels.
struct ToeplitzMatvecOperands {
    BroadcastOperand column, row, x;
    i64 size[BroadcastOperand::kMaxLeading] = {};
    int leading = 0;
    i64 rows = 0;  // systems
};

inline ToeplitzMatvecArgs toeplitz_matvec_args(const ToeplitzMatvecOperands& operands, bool transpose) {
    const auto strided = [](const BroadcastOperand& from) { return ToeplitzOperand{from.data, from.step, from.stride[0]}; };
    const BroadcastOperand &below = transpose ? operands.row : operands.column,
                           &above = transpose ? operands.column : operands.row;
    ToeplitzMatvecArgs args{
        .below = strided(below), .above = strided(above), .x = strided(operands.x), .first_below = transpose};
    args.inner_count = std::max(0, operands.leading - 1);
    for (int d = 0; d < args.inner_count; ++d)
        args.inner[d] = {operands.size[d + 1], below.stride[d + 1], above.stride[d + 1], operands.x.stride[d + 1]};
    return args;
}

struct ToeplitzMatvec {
    GDN_KERNEL(ToeplitzMatvec, structured, toeplitz_matvec, ToeplitzMatvecConfig, ToeplitzMatvecArgs,
               "products with Toeplitz matrices and their transposes by transforms in one block's shared memory");

    static std::span<const Config> configurations() { return kToeplitzMatvecConfigurations; }
    static int threads(const Config& config) { return config.threads; }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kToeplitzMatvecConfigurations, ToeplitzMatvecSharedPlan>(config);
    }

    static void run(const ToeplitzMatvecProblem& problem, Args args, const Target& target) {
        args.columns_per_block = toeplitz_matvec_columns_per_block(problem, jit::device_traits(target.ordinal));
        args.log_transform = std::countr_zero(static_cast<unsigned>(toeplitz_transform_of(problem.io, problem.n)));
        const i64 parts = ceil_div(problem.columns, args.columns_per_block);
        launch<ToeplitzMatvec>(toeplitz_matvec_config(problem), args, {problem.systems, parts, 1}, target,
                               [&](const auto& device) { return explain_toeplitz_matvec(problem, device); });
    }
};

}  // namespace gdn_cuda::structured
