// What the kernels of causal_conv1d share on the host.
#pragma once

#include <array>
#include <gdn_cuda/kernels/conv/causal_conv/plan.cuh>
#include <string>

#include "../../kernels/spec.hpp"

namespace gdn_cuda::conv {

struct CausalProblem {
    DType io;
    bool channels_last;
    i64 taps;
    bool vectors;    // x and out are rows of whole vectors on 16 bytes
    bool sequences;  // tokens of a row may be of several, or there are states
};

// Everything that a choice returns, from every dtype, layout and these numbers of taps.
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
                       problem.channels_last ? "channels are neighbours in memory" : "tokens are neighbours in memory", why);
}

}  // namespace gdn_cuda::conv
