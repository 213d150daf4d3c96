// Configurations of the kernels of Hyena's steps and filters.
#include <gtest/gtest.h>

#include "families/conv/hyena_filter.hpp"
#include "families/conv/hyena_step.hpp"
#include "heuristics_tools.hpp"

namespace gdn_cuda::conv {
namespace {

TEST(HyenaFirStepHeuristic, ChoosesWhatIsRegisteredForEveryFilter) {
    for (int taps = 1; taps <= kMostFirTaps; ++taps) {
        const HyenaFirStepConfig config = HyenaFirStep::config_for(taps);
        EXPECT_TRUE(in(HyenaFirStep::kConfigurations, config)) << to_text(config);
        EXPECT_GE(config.most_taps(), taps);
        EXPECT_EQ(32 % config.lanes, 0);
    }
    EXPECT_EQ(HyenaFirStep::config_for(3).lanes, 1);
    EXPECT_EQ(HyenaFirStep::config_for(128).elements, 4);
}

HyenaFirStepArgs contiguous_states(i64 sequences, int channels, int width) {
    HyenaFirStepArgs args{};
    args.sequences = sequences;
    args.channels = channels;
    args.width = width;
    args.state_slot = i64{channels} * width;
    args.state_channel = width;
    args.state_position = 1;
    return args;
}

TEST(HyenaFirStepHeuristic, StagesRunsOfWholeUnitsAlone) {
    EXPECT_TRUE(has_state_runs(contiguous_states(2, 4, 3)));
    EXPECT_TRUE(has_state_runs(contiguous_states(2, 6, 6)));
    EXPECT_FALSE(has_state_runs(contiguous_states(2, 4, 0)));
    EXPECT_FALSE(has_state_runs(contiguous_states(2, 6, 3)));
    const auto with = [](const auto& change) {
        HyenaFirStepArgs args = contiguous_states(2, 4, 3);
        change(args);
        return has_state_runs(args);
    };
    EXPECT_TRUE(with([](HyenaFirStepArgs& args) { args.state_slot = 16; }));
    EXPECT_FALSE(with([](HyenaFirStepArgs& args) { args.state_slot = 13; }));
    EXPECT_FALSE(with([](HyenaFirStepArgs& args) { args.state_channel = 4; }));
    EXPECT_FALSE(with([](HyenaFirStepArgs& args) { args.state_position = 2; }));
    EXPECT_FALSE(with([](HyenaFirStepArgs& args) { args.state_type = DType::bf16; }));
    EXPECT_FALSE(with([](HyenaFirStepArgs& args) { args.states = reinterpret_cast<void*>(8); }));
}

TEST(HyenaFirStepHeuristic, StagedConfigurationsHoldTheirRows) {
    for (const DType io : {DType::f32, DType::bf16, DType::f16}) {
        EXPECT_EQ(HyenaFirStaged::config_for(1 + 129, io), nullptr);
        for (int taps = 2; taps <= 129; ++taps) {
            const HyenaFirStagedConfig* config = HyenaFirStaged::config_for(taps, io);
            ASSERT_NE(config, nullptr) << taps;
            EXPECT_EQ(config->io, io);
            EXPECT_GE(config->most_taps(), taps);
            EXPECT_LE(config->certain * config->lanes, taps - 1) << "an element that some row lacks";
            EXPECT_EQ(config->rows % HyenaStateUnit::kValues, 0) << "a warp's run may start within a unit";
        }
    }
}

TEST(HyenaFirStepHeuristic, StagedBlocksCoverTheBatchInOneWave) {
    Random random;
    for (int i = 0; i < kProblems; ++i) {
        HyenaFirStepArgs args = contiguous_states(1 + random.size(4096), 1 + static_cast<int>(random.size(20000)), 6);
        const jit::DeviceTraits device = device_of(random.one_of({46, 108, 132, 160}));
        const HyenaFirStagedConfig& config = *HyenaFirStaged::config_for(random.one_of({3, 7, 30, 128}), DType::bf16);
        const i64 blocks = hyena_step_wave(args, config.block_rows(), config.blocks(), device)[0];
        const i64 channel_blocks = ceil_div(args.channels, config.block_rows());
        ASSERT_EQ(blocks % channel_blocks, 0);
        const i64 groups_of_sequences = blocks / channel_blocks;
        ASSERT_GE(groups_of_sequences * args.block_sequences, args.sequences);
        ASSERT_LT((groups_of_sequences - 1) * args.block_sequences, args.sequences) << "a block has no sequence";
        if (groups_of_sequences == 1) continue;
        ASSERT_LE(blocks, i64{device.multiprocessors} * config.blocks()) << "more than one wave";
    }
}

TEST(HyenaModalStepHeuristic, ChoosesWhatIsRegisteredForEveryNumberOfStates) {
    for (int states = 1; states <= kMostModalStates; ++states)
        for (const bool vectors : {true, false})
            for (const DType io : {DType::f32, DType::bf16, DType::f16}) {
                const HyenaModalStepConfig config = HyenaModalStep::config_for(states, vectors, io);
                EXPECT_TRUE(in(HyenaModalStep::kConfigurations, config)) << to_text(config);
                EXPECT_GE(config.most_states(), states);
                EXPECT_EQ(config.vectors, vectors);
                EXPECT_TRUE(!vectors || config.io == io);
            }
}

TEST(HyenaFilterHeuristic, BlocksCoverEveryToken) {
    EXPECT_EQ(HyenaFilterKernel::blocks(3, 0), 0);
    EXPECT_EQ(HyenaFilterKernel::blocks(3, 4096), 3);
    EXPECT_EQ(HyenaFilterKernel::blocks(3, 4097), 6);
    EXPECT_EQ(HyenaFilterBackwardKernel::blocks(3, 17, 16385), 3 * 2 * 2);
}

}  // namespace
}  // namespace gdn_cuda::conv
