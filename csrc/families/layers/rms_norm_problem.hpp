// Host side of both layers/rms_norm and layers/rms_norm_backward: configuration and grid.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/layers/rms_norm/plan.cuh>
#include <string>

#include "../../launch/spec.hpp"

namespace gdn_cuda::layers {

struct RmsNormProblem {
    DType io;
    bool vectors;  // rows of whole 16-byte vectors, all of one dtype
    i64 rows, columns, groups;
};

// `most_per_lane`: elements per thread for long rows, 8 or 16, limited by the kernel's registers.
constexpr RmsNormConfig rms_norm_config(const RmsNormProblem& problem, int most_per_lane) {
    RmsNormConfig config{.io = problem.io, .vectors = problem.vectors, .lanes = 32, .per_lane = 8, .is_long = false};
    if (problem.columns > 4096 || (problem.columns > 256 && !problem.vectors)) {
        config.lanes = problem.vectors ? 512 : 256;
        config.per_lane = problem.vectors ? most_per_lane : 8;
        config.is_long = true;
    } else if (problem.columns > 1024) {
        config.lanes = 4096 / most_per_lane;
        config.per_lane = most_per_lane;
    } else if (problem.columns > 256) {
        config.lanes = 128;
    } else if (problem.vectors && problem.columns <= 128) {
        config.lanes = problem.columns <= 64 ? 8 : 16;
    }
    return config;
}

template <int kMostPerLane>
constexpr auto every_rms_norm_configuration() {
    constexpr std::array kColumns{64, 128, 256, 1024, 4096, 8192};
    constexpr std::array kColumnsOfElements{256, 8192};
    std::array<RmsNormConfig, 3 * (kColumns.size() + kColumnsOfElements.size())> all{};
    size_t count = 0;
    for (const DType io : {DType::bf16, DType::f16, DType::f32}) {
        for (const int columns : kColumns) all[count++] = rms_norm_config({io, true, 1, columns, 1}, kMostPerLane);
        for (const int columns : kColumnsOfElements) all[count++] = rms_norm_config({io, false, 1, columns, 1}, kMostPerLane);
    }
    return all;
}

// No more blocks than run at the same time: each block reads the weights once and writes one partial sum of their gradient.
inline Blocks rms_norm_blocks(const RmsNormProblem& problem, const RmsNormConfig& config, int blocks_per_multiprocessor,
                              const jit::DeviceTraits& device) {
    const i64 most =
        std::max<i64>(i64{blocks_per_multiprocessor} * device.multiprocessors / std::max<i64>(problem.groups, 1), 1);
    return {std::min(ceil_div(problem.rows, config.rows()), most), problem.groups, 1};
}

inline std::string explain_rms_norm(const RmsNormProblem& problem, const RmsNormConfig& config) {
    return fmt::format("rows of {} elements {}: {} threads a row, {} elements each{}", problem.columns,
                       problem.vectors ? "in whole 16-byte units" : "of mixed dtypes or not in whole 16-byte units",
                       config.lanes, config.per_lane, config.is_long ? " at a time" : "");
}

}  // namespace gdn_cuda::layers
