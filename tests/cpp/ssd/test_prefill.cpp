// ssd/prefill on the host.
#include <gtest/gtest.h>

#include "families/ssd/prefill.hpp"

namespace gdn_cuda::ssd {
namespace {

TEST(SsdPrefill, SplitsSequencesWhereMultiprocessorsWouldBeIdle) {
    EXPECT_EQ(ssd_segments(8, 1, 8192, false, 132), 16);
    EXPECT_EQ(ssd_segments(64, 1, 8192, false, 132), 2);
    EXPECT_EQ(ssd_segments(67, 1, 8192, false, 132), 1);
    EXPECT_EQ(ssd_segments(8, 1, 600, false, 132), 1) << "segments have eight chunks or more";
    EXPECT_EQ(ssd_segments(1, 1, 1 << 20, false, 132), 32);
    EXPECT_EQ(ssd_segments(1, 16, 1 << 14, true, 132), 2) << "of packed sequences of 1024 tokens";
    EXPECT_EQ(ssd_segments(0, 0, 0, false, 132), 1);
}

TEST(SsdPrefill, EveryConfigurationHasTwoStagesOrMoreAndFits) {
    for (const SsdConfig& config : Prefill::configurations()) {
        EXPECT_GE(config.stages(), 2) << to_text(config);
        EXPECT_LE(Prefill::shared_bytes(config), kSharedBytes) << to_text(config);
        const int registers = config.scores_registers() + config.row_tiles * config.row_registers();
        EXPECT_LE(registers * kWarpgroup, 65536) << to_text(config);
    }
}

}  // namespace
}  // namespace gdn_cuda::ssd
