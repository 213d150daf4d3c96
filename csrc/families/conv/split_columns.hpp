// conv/split_columns on the host: which configuration runs a problem, and its launch.
#pragma once

#include "split_problem.hpp"

namespace gdn_cuda::conv {

constexpr SplitColumnsConfig split_columns_config(DType io, const SplitHeads& heads, bool sequences) {
    return {.io = io, .lane_channels = heads.normalised && heads.dk > 128 ? 8 : 4, .sequences = sequences};
}
// Whether there is more than rows that are one sequence each and begin with zeros.
inline bool has_sequences(const CausalSequenceArgs& sequences) {
    return sequences.cu_seqlens.data != nullptr || sequences.initial.values.data != nullptr || sequences.slots.data != nullptr;
}
constexpr auto every_split_columns() {
    std::array<SplitColumnsConfig, 12> all{};
    int count = 0;
    for (const DType io : {DType::bf16, DType::f16, DType::f32})
        for (const int dk : {128, 256})
            for (const bool sequences : {false, true}) all[count++] = split_columns_config(io, {.dk = dk}, sequences);
    return all;
}
inline constexpr std::array kSplitColumnsConfigurations = every_split_columns();

struct SplitColumns {
    using Config = SplitColumnsConfig;
    using Args = SplitArgs;
    static constexpr const char *family = "conv", *name = "split_columns", *config_type = "SplitColumnsConfig",
                                *args_type = "SplitArgs";
    static constexpr const char* summary = "conv/split_conv for 4 taps, where channels are neighbours";
    static constexpr int min_capability = 80;
    static constexpr bool uses_cutlass = false;

    static std::span<const Config> configurations() { return kSplitColumnsConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kSplitColumnsConfigurations, SplitColumnsSharedPlan>(
            config, std::make_index_sequence<kSplitColumnsConfigurations.size()>());
    }
    // Tokens of a warp: the rows in front of a segment are read twice, and there have to be warps for every SM.
    static int segment(const Config& config, const CausalArgs& conv) {
        constexpr i64 kManyWarps = 8192;
        constexpr int kLong = 64, kShort = 32;
        const i64 warps = conv.batches * ceil_div(conv.channels, config.channels()) * ceil_div(conv.tokens, kLong);
        return warps >= kManyWarps ? kLong : kShort;
    }
    static Blocks blocks(const Config& config, const CausalArgs& conv) {
        const i64 of_block = i64{segment(config, conv)} * (config.threads() / 32);
        return {conv.batches * ceil_div(conv.channels, config.channels()) * ceil_div(conv.tokens, of_block), 1, 1};
    }
    static void run(DType io, Args args, const Target& target) {
        const Config config = split_columns_config(io, args.heads, has_sequences(args.conv.sequences));
        const Blocks grid = blocks(config, args.conv);
        if (grid[0] == 0) return;
        args.conv.segment = segment(config, args.conv);
        launch<SplitColumns>(config, args, grid, target, [&](const auto&) {
            return fmt::format("{} channels a lane, {} tokens a warp", config.lane_channels, args.conv.segment);
        });
    }
};

}  // namespace gdn_cuda::conv
