// layers/split_backward on the host: its launch.
#pragma once

#include "split_problem.hpp"

namespace gdn_cuda::layers {

struct SplitBackward {
    using Config = SplitConfig;
    using Args = SplitBackwardArgs;
    static constexpr const char *family = "layers", *name = "split_backward", *config_type = "SplitConfig",
                                *args_type = "SplitBackwardArgs";
    static constexpr const char* summary = "gradients of the split and the norms of layers/split_conv";
    static constexpr int min_capability = 80;
    static constexpr bool uses_cutlass = false;

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
