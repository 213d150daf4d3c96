// Configurations of the kernels of Hyena's operators, and how they split sequences.
#include <gtest/gtest.h>

#include "families/conv/hyena_long.hpp"
#include "families/conv/hyena_long_backward.hpp"
#include "families/conv/hyena_medium.hpp"
#include "families/conv/hyena_medium_backward.hpp"
#include "families/conv/hyena_short.hpp"
#include "families/conv/hyena_short_backward.hpp"
#include "heuristics_tools.hpp"

namespace gdn_cuda::conv {
namespace {

TEST(HyenaSplit, SegmentsAreWholeUnitsAndCoverEveryToken) {
    for (const i64 rows : {i64{1}, i64{7}, i64{4096}, i64{1} << 40})
        for (const i64 tokens : {0, 1, 255, 256, 257, 65536, 1 << 30}) {
            const HyenaSplit split = hyena_split(rows, tokens, 256, 512, 16896);
            EXPECT_GE(split.segments, 1);
            EXPECT_EQ(split.segment_tokens % 256, 0);
            EXPECT_GE(split.segment_tokens, 512);
            EXPECT_GE(i64{split.segments} * split.segment_tokens, tokens);
            EXPECT_LT((split.segments - i64{1}) * split.segment_tokens, std::max<i64>(1, tokens));
            const HyenaSplit waves = hyena_split_by_waves(rows, tokens, 8, 64, 2112, 4, 7);
            EXPECT_EQ(waves.segment_tokens % 8, 0);
            EXPECT_GE(waves.segment_tokens, 64);
            EXPECT_GE(i64{waves.segments} * waves.segment_tokens, tokens);
            EXPECT_LT((waves.segments - i64{1}) * waves.segment_tokens, std::max<i64>(1, tokens));
        }
    EXPECT_EQ(hyena_split(i64{1} << 40, 65536, 256, 512, 16896).segments, 1);
    EXPECT_GT(hyena_split(1, 65536, 256, 512, 16896).segments, 100);
}

TEST(HyenaShortHeuristic, ChoosesWhatIsRegistered) {
    for (const DType io : {DType::bf16, DType::f16, DType::f32})
        for (int taps = 1; taps <= kHyenaShortMostTaps; ++taps) {
            const HyenaShortConfig rows = hyena_short_config({io, taps}), columns = hyena_short_columns_config({io, taps});
            EXPECT_TRUE(in(kHyenaShortConfigurations, rows)) << to_text(rows);
            EXPECT_TRUE(in(kHyenaShortColumnsConfigurations, columns)) << to_text(columns);
            for (const HyenaShortConfig& config : {rows, columns})
                EXPECT_TRUE(config.exact ? config.taps == taps : config.taps >= taps) << to_text(config);
        }
}

TEST(HyenaShortBackwardHeuristic, SegmentsAreWholeTilesOrStepsAndCoverEveryToken) {
    const jit::DeviceTraits device;
    for (const i64 taps : {1, 7, 8, 9, 32})
        for (const i64 channels : {1, 33, 4096})
            for (const i64 tokens : {0, 1, 224, 65536, 1 << 30}) {
                const HyenaShortProblem problem{DType::bf16, taps};
                const HyenaShortConfig config = hyena_short_config(problem);
                const HyenaSplit rows = HyenaShortBackward::split(problem, 2, channels, tokens, device);
                const HyenaSplit columns = HyenaShortColumnsBackward::split(problem, 2, channels, tokens, device);
                EXPECT_EQ(rows.segment_tokens % HyenaShortBackwardTile{config.taps}.step(), 0);
                EXPECT_EQ(columns.segment_tokens % HyenaShortBackwardColumns{hyena_short_columns_config(problem)}.step(), 0);
                for (const HyenaSplit& split : {rows, columns}) {
                    EXPECT_GE(i64{split.segments} * split.segment_tokens, tokens);
                    EXPECT_LT((split.segments - i64{1}) * split.segment_tokens, std::max<i64>(1, tokens));
                }
            }
}

TEST(HyenaMediumHeuristic, ChoosesWhatIsRegisteredAndFitsEveryGpu) {
    for (const DType io : {DType::bf16, DType::f16, DType::f32})
        for (const i64 taps : {1, 128, 129, 1024})
            for (const bool columns : {false, true})
                for (const int shared_bytes : {kSharedBytesEverywhere, jit::DeviceTraits{}.shared_bytes_per_block}) {
                    jit::DeviceTraits device;
                    device.shared_bytes_per_block = shared_bytes;
                    const HyenaMediumConfig config = HyenaMedium::config_on({io, taps, columns}, device);
                    EXPECT_TRUE(in(kHyenaMediumConfigurations, config)) << to_text(config);
                    EXPECT_GE(config.taps, taps);
                    EXPECT_LE(HyenaMedium::shared_bytes(config), shared_bytes);
                    EXPECT_TRUE(columns || !config.columns);
                    const HyenaMediumBackwardConfig backward = HyenaMediumBackward::config_on({io, taps, columns}, device);
                    EXPECT_TRUE(in(kHyenaMediumBackwardConfigurations, backward)) << to_text(backward);
                    EXPECT_GE(backward.taps, taps);
                    EXPECT_LE(HyenaMediumBackward::shared_bytes(backward), shared_bytes);
                    EXPECT_TRUE(columns || !backward.columns);
                }
}

TEST(HyenaLongHeuristic, ChoosesWhatIsRegisteredAndFitsTheGpu) {
    for (const DType io : {DType::bf16, DType::f16, DType::f32})
        for (const i64 states : {1, 16, 17, 64})
            for (const bool columns : {false, true})
                for (const int shared_bytes : {kSharedBytesEverywhere, jit::DeviceTraits{}.shared_bytes_per_block})
                    for (const bool only_states : {false, true}) {
                        jit::DeviceTraits device;
                        device.shared_bytes_per_block = shared_bytes;
                        const HyenaLongConfig config = HyenaLong::choose({io, states, columns}, only_states, device);
                        EXPECT_TRUE(in(kHyenaLongConfigurations, config)) << to_text(config);
                        EXPECT_GE(config.groups * kHyenaGroup, states);
                        EXPECT_LE(HyenaLong::shared_bytes(config), shared_bytes);
                        EXPECT_TRUE(columns || !config.columns);
                    }
}

TEST(HyenaLongBackwardHeuristic, ChoosesWhatIsRegisteredAndFitsTheGpu) {
    for (const DType io : {DType::bf16, DType::f16, DType::f32})
        for (const i64 states : {1, 16, 17, 64})
            for (const bool columns : {false, true})
                for (const int shared_bytes : {kSharedBytesEverywhere, jit::DeviceTraits{}.shared_bytes_per_block}) {
                    jit::DeviceTraits device;
                    device.shared_bytes_per_block = shared_bytes;
                    HyenaLongProblem problem{io, states, columns};
                    problem.columns = HyenaLongBackward::takes_columns(problem, device);
                    EXPECT_TRUE(columns || !problem.columns);
                    const HyenaLongBackwardConfig config = hyena_long_backward_config(problem);
                    EXPECT_TRUE(in(kHyenaLongBackwardConfigurations, config)) << to_text(config);
                    EXPECT_GE(config.groups * kHyenaGroup, states);
                    EXPECT_LE(HyenaLongBackward::shared_bytes(config), shared_bytes);
                    for (const bool reversed : {false, true}) {
                        const HyenaLongStatesConfig before = hyena_long_states_config(problem, reversed);
                        EXPECT_TRUE(in(kHyenaLongStatesConfigurations, before)) << to_text(before);
                        EXPECT_GE(before.groups * kHyenaGroup, states);
                        EXPECT_LE(HyenaLongStates::shared_bytes(before), shared_bytes);
                    }
                }
}

TEST(HyenaLongHeuristic, SplitsOnlyIfChannelsAreFew) {
    const jit::DeviceTraits device;
    EXPECT_EQ(hyena_long_split(4096, 1 << 20, device).segments, 1);
    EXPECT_GT(hyena_long_split(64, 1 << 20, device).segments, 16);
    EXPECT_EQ(hyena_long_split(1, 2048, device).segments, 1);
    EXPECT_EQ(hyena_long_split(1, 0, device).segments, 1);
}

}  // namespace
}  // namespace gdn_cuda::conv
