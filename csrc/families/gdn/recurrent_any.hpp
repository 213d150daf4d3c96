// Host side of gdn/recurrent_any: configuration and launch.
#pragma once

#include <algorithm>
#include <gdn_cuda/kernels/gdn/recurrent/any_plan.cuh>
#include <string>

#include "../../launch/spec.hpp"
#include "head_dimensions.hpp"

namespace gdn_cuda::gdn {

inline constexpr std::array kRecurrentAnyConfigurations = [] {
    std::array<RecurrentAnyConfig, 4 * kMaskedHeadK.size()> all{};
    size_t n = 0;
    for (const bool coded : {false, true})
        for (const bool channel_gates : {false, true})
            for (const int head_k : kMaskedHeadK) all[n++] = {head_k, channel_gates, coded};
    return all;
}();

struct RecurrentAny {
    GDN_KERNEL(RecurrentAny, gdn, recurrent_any, RecurrentAnyConfig, RecurrentAnyArgs,
               "the recurrence for tensors and states of any dtype and strides");

    static std::span<const Config> configurations() { return kRecurrentAnyConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config&) { return 0; }

    static void run(const Args& args, const Target& target) {
        const GdnCall& call = args.call;
        if (call.sequences == 0 || call.heads == 0 || call.dv == 0) return;
        const Config config{masked_head_k(call.dk), call.channels.form != ChannelGate::none, call.initial.scales != nullptr};
        const i64 tiles = ceil_div(call.dv, config.rows_per_block());
        launch<RecurrentAny>(config, args, {tiles, call.heads, std::min<i64>(call.sequences, kMostBlocks[2])}, target,
                             [&](const auto&) { return fmt::format("dk {} runs in the code for {}", call.dk, config.head_k); });
    }
};

}  // namespace gdn_cuda::gdn
