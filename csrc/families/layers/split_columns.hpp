// layers/split_columns on the host: which configuration runs a problem, and its launch.
#pragma once

#include "../conv/causal_channels_last.hpp"
#include "split_problem.hpp"

namespace gdn_cuda::layers {

constexpr SplitColumnsConfig split_columns_config(DType io, const SplitHeads& heads, bool sequences) {
    const int channels = heads.normalised && heads.dk > 128 ? 8 : 4;
    return {.io = io,
            .lane_channels = channels,
            .head_lanes = heads.normalised && heads.dk < 32 * channels ? 0 : 32,
            .sequences = sequences};
}
// Whether there are packed sequences or states; otherwise each row is one sequence that begins with zeros.
inline bool has_sequences(const conv::CausalSequenceArgs& sequences) {
    return sequences.cu_seqlens.data != nullptr || sequences.initial.values.data != nullptr || sequences.slots.data != nullptr;
}
constexpr auto every_split_columns() {
    std::array<SplitColumnsConfig, 18> all{};
    int count = 0;
    for (const DType io : {DType::bf16, DType::f16, DType::f32})
        for (const int dk : {64, 128, 256})
            for (const bool sequences : {false, true}) all[count++] = split_columns_config(io, {.dk = dk}, sequences);
    return all;
}
inline constexpr std::array kSplitColumnsConfigurations = every_split_columns();

struct SplitColumns {
    GDN_KERNEL(SplitColumns, layers, split_columns, SplitColumnsConfig, SplitArgs,
               "layers/split_conv for 4 taps and contiguous channels");

    static std::span<const Config> configurations() { return kSplitColumnsConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config&) { return 0; }
    static void run(DType io, Args args, const Target& target) {
        const Config config = split_columns_config(io, args.heads, has_sequences(args.conv.sequences));
        args.conv.segment =
            conv::column_segment(args.conv, config.channels(), jit::device_traits(target.ordinal), conv::kLongestOfFewTaps);
        const Blocks grid = with_gates(args, conv::column_blocks(args.conv, args.conv.segment, config), config.threads());
        if (grid[0] == 0) return;
        launch<SplitColumns>(config, args, grid, target, [&](const auto&) {
            return fmt::format("{} channels a lane, {} tokens a warp", config.lane_channels, args.conv.segment);
        });
    }
};

}  // namespace gdn_cuda::layers
