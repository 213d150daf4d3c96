// The problem from which the kernels of causal_conv1d choose a configuration.
#pragma once

#include <array>
#include <gdn_cuda/kernels/conv/causal_conv/plan.cuh>
#include <string>

#include "../../launch/spec.hpp"

namespace gdn_cuda::conv {

struct CausalProblem {
    DType io;
    bool channels_last;
    i64 taps;
    bool vectors;    // rows of x and out are whole aligned 16-byte vectors
    bool sequences;  // a row may have several sequences, or there are states
};

// The configurations that a choice can return: for every dtype, both layouts and the given counts of taps.
template <auto kConfigOf, size_t kCount>
constexpr auto every_configuration(const std::array<i64, kCount>& taps) {
    std::array<decltype(kConfigOf(CausalProblem{})), 6 * kCount> all{};
    int count = 0;
    for (const DType io : {DType::bf16, DType::f16, DType::f32})
        for (const bool channels_last : {false, true})
            for (const i64 each : taps) all[count++] = kConfigOf({io, channels_last, each, true, false});
    return all;
}

inline std::string explain_causal(const CausalProblem& problem, const char* why) {
    return fmt::format("{} taps, {}: {}", problem.taps,
                       problem.channels_last ? "channels are contiguous" : "tokens are contiguous", why);
}

}  // namespace gdn_cuda::conv
