// layers/split_backward on the host: its launch.
#pragma once

#include "split_problem.hpp"

namespace gdn_cuda::layers {

struct SplitBackward {
    GDN_KERNEL(SplitBackward, layers, split_backward, SplitConfig, SplitBackwardArgs,
               "gradients of the split and the norms of layers/split_conv");

    static std::span<const Config> configurations() { return kSplitConfigurations; }
    static int threads(const Config& config) { return config.threads; }
    static int shared_bytes(const Config&) { return 0; }
    static void run(DType io, const Args& args, const Target& target) {
        const Blocks blocks = split_blocks(i64{args.batches} * args.tokens, args.heads);
        if (blocks[0] == 0) return;
        launch<SplitBackward>(split_config(io), args, blocks, target,
                              [](const auto&) { return std::string("a warp for each head of a token"); });
    }
};

}  // namespace gdn_cuda::layers
