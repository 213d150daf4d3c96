// layers/split_conv on the host: its launch.
#pragma once

#include "split_problem.hpp"

namespace gdn_cuda::layers {

struct SplitConv {
    GDN_KERNEL(SplitConv, layers, split_conv, SplitConfig, SplitArgs,
               "causal convolution with silu, split into heads of q, k and v; q and k normalised");

    static constexpr const char* summary = "causal convolution with silu, split into heads of q, k and v; q and k normalised";

    static std::span<const Config> configurations() { return kSplitConfigurations; }
    static int threads(const Config& config) { return config.threads; }
    static int shared_bytes(const Config&) { return 0; }
    static void run(DType io, Args args, const Target& target) {
        const Config config = split_config(io);
        const Blocks blocks =
            with_gates(args, split_blocks(i64{args.conv.batches} * args.conv.tokens, args.heads), config.threads);
        if (blocks[0] == 0) return;
        launch<SplitConv>(config, args, blocks, target,
                          [](const auto&) { return std::string("a warp for each head of a token"); });
    }
};

}  // namespace gdn_cuda::layers
