// The family's environment variables.
#include "families/scan/variables.hpp"
#include "support.hpp"

namespace gdn_cuda::test {
namespace {

TEST(ScanVariables, PiecesOfLongSequences) {
    const auto pieces = [](const char* text) {
        return in_child({{"GDN_SCAN_PIECES", text}}, [] { return std::to_string(scan::kSegmentsVariable.value()); }).value;
    };
    for (const char* text : {"", "auto", "Auto"}) EXPECT_EQ(pieces(text), "0") << text;
    for (const char* text : {"1", "7", "128"}) EXPECT_EQ(pieces(text), text);
    for (const char* text : {"0", "129", "-1", "2.5", "many", " 2"})
        EXPECT_CONTAINS(pieces(text),
                        std::string("error: GDN_SCAN_PIECES: expected auto, or a number from 1 to 128, got \"") + text + "\"");
}

TEST(ScanVariables, Turns) {
    const auto turns = [](const char* text) {
        return in_child({{"GDN_SCAN_TURNS", text}}, [] { return std::to_string(scan::kTurnsVariable.value()); }).value;
    };
    EXPECT_EQ(turns("auto"), "0");
    EXPECT_EQ(turns("4"), "4");
    EXPECT_CONTAINS(turns("129"), "error: GDN_SCAN_TURNS: expected auto, or a number from 1 to 128, got \"129\"");
}

}  // namespace
}  // namespace gdn_cuda::test
