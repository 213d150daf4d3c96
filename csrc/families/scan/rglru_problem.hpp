// Host side of both scan/rglru and scan/rglru_backward.
#pragma once

#include <array>
#include <gdn_cuda/kernels/scan/rglru/plan.cuh>
#include <string>

#include "../../launch/spec.hpp"

namespace gdn_cuda::scan {

struct RglruProblem {
    DType io;
    bool channels_last;
    i64 states;
};

// All configurations that the heuristic kConfigOf returns.
template <auto kConfigOf>
constexpr std::array<RglruConfig, 12> every_rglru_configuration() {
    std::array<RglruConfig, 12> all{};
    int count = 0;
    for (const DType io : {DType::bf16, DType::f16, DType::f32})
        for (const bool channels_last : {false, true})
            for (const i64 states : {1, 2}) all[count++] = kConfigOf({io, channels_last, states});
    return all;
}

inline Blocks rglru_blocks(const RglruConfig& config, i64 batches, i64 channels) {
    return {batches * ceil_div(channels, config.channels()), 1, 1};
}

inline std::string explain_rglru(const RglruProblem& problem, const RglruConfig& config) {
    return fmt::format("{}, {}: tiles of {} tokens, {} a thread",
                       problem.channels_last ? "channels are contiguous in memory, 32 channels a block"
                                             : "tokens are contiguous in memory, one channel a block",
                       problem.states > 1 ? fmt::format("{} states one after another", problem.states) : "one state",
                       config.tile(), config.tokens);
}

}  // namespace gdn_cuda::scan
