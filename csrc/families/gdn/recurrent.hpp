// Host side of gdn/recurrent: configuration and launch.
#pragma once

#include <algorithm>
#include <gdn_cuda/kernels/gdn/recurrent/plan.cuh>
#include <string>
#include <vector>

#include "../../launch/spec.hpp"
#include "head_dimensions.hpp"

namespace gdn_cuda::gdn {

struct RecurrentProblem {
    i64 sequences, tokens;  // tokens: of the longest sequence; of a packed batch, the mean
    int heads, dk, dv;
    DType io, state;
    bool aligned;
    bool channel_gates = false;  // a gate for every channel of the key
};
// Several rows per thread share its reads of a token; used as long as every SM still has a few blocks.
inline constexpr i64 kRecurrentBlocksPerMultiprocessor = 4;

inline RecurrentConfig recurrent_config(const RecurrentProblem& problem, const jit::DeviceTraits& device) {
    RecurrentConfig config{.head_k = problem.dk,
                           .exact_k = true,
                           .io = problem.io,
                           .state = problem.state,
                           .rows_per_thread = 1,
                           .warps = 4,
                           .aligned = problem.aligned,
                           .channel_gates = problem.channel_gates};
    if (!problem.aligned || !has_exact_kernel(problem.dk)) {
        config.exact_k = false;
        config.head_k = masked_head_k(problem.dk);
        return config;
    }
    const i64 rows = problem.sequences * problem.heads * problem.dv;
    RecurrentConfig wide = config;
    wide.rows_per_thread = 2;
    return rows / wide.rows_per_block() >= kRecurrentBlocksPerMultiprocessor * device.multiprocessors ? wide : config;
}

inline std::string explain_recurrent(const RecurrentProblem& problem, const jit::DeviceTraits& device) {
    const RecurrentConfig config = recurrent_config(problem, device);
    const i64 blocks = problem.sequences * problem.heads * ceil_div(problem.dv, config.rows_per_block());
    std::string why;
    if (!problem.aligned) why += "rows do not start on 16 bytes: element-wise loads; ";
    if (!config.exact_k) why += fmt::format("dk {} runs masked in the code for {}; ", problem.dk, config.head_k);
    why += fmt::format("{} row{} a thread: {} blocks for {} multiprocessors", config.rows_per_thread,
                       config.rows_per_thread == 1 ? "" : "s", blocks, device.multiprocessors);
    return why;
}

// All configurations that recurrent_config can return.
inline std::vector<RecurrentConfig> recurrent_configurations() {
    std::vector<RecurrentConfig> all;
    const auto add = [&](RecurrentConfig config) {
        if (std::ranges::find(all, config) == all.end()) all.push_back(config);
    };
    for (bool channel_gates : {false, true})
        for (DType io : {DType::bf16, DType::f16})
            for (DType state : {DType::f32, DType::bf16, DType::i8}) {
                const auto choose = [&](i64 sequences, i64 tokens, int dk, bool aligned) {
                    add(recurrent_config({sequences, tokens, 32, dk, 128, io, state, aligned, channel_gates}, {}));
                };
                for (int dk : kExactHeadK) {
                    choose(1, 1, dk, true);
                    choose(4096, 1, dk, true);
                }
                for (int head_k : kMaskedHeadK)
                    for (bool aligned : {true, false}) choose(1, 1, head_k - (state == DType::i8 ? 32 : 8), aligned);
            }
    return all;
}

struct Recurrent {
    GDN_KERNEL(Recurrent, gdn, recurrent, RecurrentConfig, GdnCall,
               "the recurrence token by token: packed batches, odd shapes, rows that do not start on 16 bytes");

    static std::span<const Config> configurations() {
        static constinit std::atomic<const std::vector<Config>*> all{nullptr};
        return jit::made_once(all, recurrent_configurations);
    }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config&) { return 0; }

    static void run(const RecurrentProblem& problem, const Args& args, const Target& target) {
        if (args.sequences == 0 || args.heads == 0 || args.dv == 0) return;
        const Config config = recurrent_config(problem, jit::device_traits(target.ordinal));
        const i64 tiles = ceil_div(args.dv, config.rows_per_block());
        launch<Recurrent>(config, args, {tiles, args.heads, std::min<i64>(args.sequences, kMostBlocks[2])}, target,
                          [&](const auto& device) { return explain_recurrent(problem, device); });
    }
};

}  // namespace gdn_cuda::gdn
