// common/uncovered_zeros on the host: its Spec.
#pragma once

#include <array>
#include <gdn_cuda/kernels/common/uncovered_zeros_plan.cuh>
#include <initializer_list>

#include "../../launch/spec.hpp"

namespace gdn_cuda::common {

struct UncoveredZeros {
    GDN_KERNEL(UncoveredZeros, common, uncovered_zeros, UncoveredZerosConfig, UncoveredZerosArgs,
               "zeros for tokens that belong to no packed sequence");

    static constexpr std::array kConfigurations = {Config{.tokens = 128}};
    static std::span<const Config> configurations() { return kConfigurations; }
    static int threads(const Config&) { return Config::kThreads; }
    static int shared_bytes(const Config&) { return 0; }  // statically allocated

    // Absent tensors have null data.
    static void run(std::initializer_list<TokenRows> tensors, const Tagged& cu_seqlens, int sequences, int tokens,
                    const Target& target) {
        Args args{.cu_seqlens = cu_seqlens, .sequences = sequences, .tokens = tokens};
        for (const TokenRows& each : tensors)
            if (each.data != nullptr && each.rows > 0 && each.bytes > 0) args.tensors[args.count++] = each;
        if (args.count == 0 || tokens == 0) return;
        launch<UncoveredZeros>(kConfigurations[0], args, {ceil_div(tokens, kConfigurations[0].tokens), 1, 1}, target,
                               [&](const auto&) { return fmt::format("{} tensors of packed tokens", args.count); });
    }
};

}  // namespace gdn_cuda::common
