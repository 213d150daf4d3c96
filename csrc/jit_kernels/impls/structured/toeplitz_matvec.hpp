// structured/toeplitz_matvec on the host, and how operands become the arguments of both ways to multiply.
#pragma once

#include "../../heuristics/structured_toeplitz.hpp"
#include "../spec.hpp"

namespace gdn_cuda::structured {

// As callers have them, with leading dimensions as the other kernels have theirs.
struct ToeplitzMatvecOperands {
    Lines column, row, x;
    i64 size[Lines::kMaxLeading] = {};
    int leading = 0;
    i64 rows = 0;  // systems
};

inline ToeplitzMatvecArgs toeplitz_matvec_args(const ToeplitzMatvecOperands& operands, bool transpose) {
    const auto line = [](const Lines& from) { return ToeplitzLine{from.data, from.step, from.stride[0]}; };
    const Lines &below = transpose ? operands.row : operands.column, &above = transpose ? operands.column : operands.row;
    ToeplitzMatvecArgs args{.below = line(below), .above = line(above), .x = line(operands.x), .first_below = transpose};
    args.inner_count = std::max(0, operands.leading - 1);
    for (int d = 0; d < args.inner_count; ++d)
        args.inner[d] = {operands.size[d + 1], below.stride[d + 1], above.stride[d + 1], operands.x.stride[d + 1]};
    return args;
}

struct ToeplitzMatvec {
    using Config = ToeplitzMatvecConfig;
    using Args = ToeplitzMatvecArgs;
    static constexpr const char *family = "structured", *name = "toeplitz_matvec", *config_type = "ToeplitzMatvecConfig",
                                *args_type = "ToeplitzMatvecArgs";
    static constexpr const char* summary =
        "products with Toeplitz matrices and their transposes by transforms in one block's shared memory";
    static constexpr int min_capability = 80;
    static constexpr bool uses_cutlass = false;

    static std::span<const Config> configurations() { return kToeplitzMatvecConfigurations; }
    static int threads(const Config& config) { return config.threads; }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kToeplitzMatvecConfigurations, ToeplitzMatvecSharedPlan>(
            config, std::make_index_sequence<kToeplitzMatvecConfigurations.size()>());
    }

    static void run(const ToeplitzMatvecProblem& problem, Args args, const Target& target) {
        args.columns_per_block = toeplitz_matvec_columns_per_block(problem, jit::device_traits(target.ordinal));
        args.log_transform = std::countr_zero(static_cast<unsigned>(toeplitz_transform_of(problem.io, problem.n)));
        const i64 parts = ceil_div(problem.columns, args.columns_per_block);
        launch<ToeplitzMatvec>(toeplitz_matvec_config(problem), args, {problem.systems, parts, 1}, target);
    }
};

}  // namespace gdn_cuda::structured
