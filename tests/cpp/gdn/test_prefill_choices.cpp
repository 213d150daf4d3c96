// The choices of gdn/prefill for some hundreds of problems, recorded in prefill_choices.txt: how sequences are split, the
// launches, the workspace. They change only on purpose: GDN_TEST_RECORD=1 writes the file again.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "families/chunked/launch.hpp"
#include "heuristics_tools.hpp"
#include "launch/explanation.hpp"

namespace gdn_cuda::gdn {
namespace {

struct Recorded {
    ChunkedProblem problem;
    int multiprocessors;
    bool in_place;     // final states overwrite initial states
    bool checkpoints;  // states after every few tokens are stored
};

std::string text_of(const Recorded& each) {
    const ChunkedProblem& x = each.problem;
    std::string options;
    if (x.deterministic) options += " deterministic";
    if (each.in_place) options += " in-place";
    if (each.checkpoints) options += " checkpoints";
    return fmt::format("{}x{}{} {} heads {}/{} {} {} SMs{}", x.sequences, x.tokens,
                       x.packed_tokens > 0 ? fmt::format(" packed {}", x.packed_tokens) : "", x.heads, x.dk, x.dv,
                       name_of(x.io), each.multiprocessors, options);
}

// Random picks that are the same on every platform; distributions of <random> are not.
class Picks {
  public:
    template <class T>
    T of(std::initializer_list<T> values) {
        state_ = state_ * 6364136223846793005u + 1442695040888963407u;
        return values.begin()[(state_ >> 33) % values.size()];
    }

  private:
    std::uint64_t state_ = 20261128;
};

// One sequence of each length and head count; then random picks of all parameters.
std::vector<Recorded> recorded_problems() {
    std::vector<Recorded> all;
    for (const int heads : {1, 2, 4, 8, 16, 24, 32, 64})
        for (const i64 tokens : {1, 512, 1024, 1600, 2048, 4096, 5121, 8192, 32768, 131072})
            for (const bool deterministic : {false, true})
                all.push_back({{.sequences = 1,
                                .tokens = tokens,
                                .heads = heads,
                                .dk = 128,
                                .dv = 128,
                                .io = DType::bf16,
                                .state = DType::f32,
                                .deterministic = deterministic},
                               132,
                               false,
                               false});
    Picks picks;
    for (int i = 0; i < 240; ++i) {
        ChunkedProblem problem{.sequences = picks.of<i64>({1, 1, 1, 2, 3, 4, 8, 16, 40, 128, 300, 4096}),
                               .tokens = picks.of<i64>({1, 64, 65, 500, 1000, 1536, 2000, 3000, 5120, 5121, 8000, 12345, 16384,
                                                        32768, 65536, 200000, 1048576}),
                               .heads = picks.of({1, 2, 3, 4, 6, 8, 8, 12, 16, 16, 32, 32, 48, 64, 128}),
                               .dk = picks.of({128, 128, 128, 96, 64, 40}),
                               .dv = picks.of({128, 128, 128, 64, 256, 192, 96, 72, 8}),
                               .io = picks.of({DType::bf16, DType::f16}),
                               .state = picks.of({DType::f32, DType::bf16}),
                               .deterministic = picks.of({false, false, true})};
        if (picks.of({false, true}))
            problem.packed_tokens = problem.sequences * problem.tokens + picks.of<i64>({0, 1}) * (problem.sequences - 1);
        all.push_back({problem, picks.of({78, 96, 108, 114, 120, 128, 132, 132}), picks.of({false, true}),
                       picks.of({false, false, false, true})});
    }
    return all;
}

// A hash of the kernel's arguments that a row of the file does not spell out.
class Digest {
  public:
    template <class... Values>
    void add(Values... values) {
        for (const double value : {static_cast<double>(values)...}) {
            std::uint64_t bits;
            std::memcpy(&bits, &value, sizeof bits);
            for (int i = 0; i < 8; ++i) hash_ = (hash_ ^ (bits >> 8 * i & 255)) * 16777619u;
        }
    }
    std::string text() const { return fmt::format("{:08x}", hash_); }

  private:
    std::uint32_t hash_ = 2166136261u;
};

std::string launches_of(const Recorded& each, const ChunkedSchedule& schedule) {
    const ChunkedProblem& x = each.problem;
    GdnCall call{.sequences = static_cast<int>(x.sequences), .heads = x.heads, .dv = x.dv, .values = x.dv, .outputs = x.dv};
    static int memory;
    if (x.packed_tokens > 0) call.cu_seqlens.data = &memory;
    if (each.checkpoints) {
        call.steps.data = &memory;
        call.step_interval = kChunk;
    }
    Explanation explanation(device_of(each.multiprocessors));
    Prefill::run(x, schedule, call, {.in_place = each.in_place}, {jit::kStandIn, nullptr});
    std::vector<std::string> launches;
    for (const ExplainedStep& step : explanation.steps) {
        const auto& [columns, rows, segments] = step.shape.grid;
        launches.push_back(fmt::format("{} {}x{}x{}", step.kernel.substr(step.kernel.find('/') + 1), columns, rows, segments));
        if (const auto config = from_text<ChunkedConfig>(step.configuration))
            launches.back() += fmt::format(" of {} rows{}{}", config->rows_per_block(), config->chained ? " chained" : "",
                                           config->persistent ? " persistent" : "");
    }
    std::string text;
    for (std::size_t i = 0, same = 1; i < launches.size(); i += same, same = 1) {
        while (i + same < launches.size() && launches[i + same] == launches[i]) ++same;
        text += fmt::format("{}{}{}", i > 0 ? " + " : "", same > 1 ? fmt::format("{} of ", same) : "", launches[i]);
    }
    return text;
}

std::string row_of(const Recorded& each) {
    const ChunkedSchedule schedule = ChunkedScheduler(each.problem, each.multiprocessors).schedule();
    Digest digest;
    digest.add(schedule.config.head_k, schedule.config.value_groups, schedule.config.chained, schedule.unsplit.value_groups,
               schedule.ahead.pairs, schedule.ahead.preparers, schedule.ahead.row_tiles, schedule.ahead.window,
               schedule.ahead.most_chunks, schedule.ahead.cached_words, schedule.ahead.carried_words, schedule.reach,
               schedule.by_length, schedule.sequences, schedule.two_launches, schedule.uneven.reach, schedule.summaries_of_head,
               schedule.summaries, schedule.state_row_tiles, schedule.summaries_of_sequence, schedule.summary_tokens,
               schedule.blocks, schedule.state_words, schedule.transition_words, schedule.cached_words, schedule.chunks,
               schedule.chain.first_length);
    for (const auto& warm_up : schedule.uneven.segments)
        for (const unsigned char segments : warm_up) digest.add(segments);
    const std::string segments =
        schedule.split.segments > 1 ? fmt::format("{} segments, reach {}", schedule.split.segments, schedule.reach) : "unsplit";
    return fmt::format("{} | {} | {} | {} bytes, {} counters | {}", text_of(each), segments, launches_of(each, schedule),
                       4 * schedule.workspace(), schedule.counts(each.in_place), digest.text());
}

TEST(PrefillChoices, AreThoseRecorded) {
    const std::string path = GDN_TEST_SOURCES "/gdn/prefill_choices.txt";
    std::vector<std::string> rows;
    for (const Recorded& each : recorded_problems()) rows.push_back(row_of(each));
    if (const char* record = std::getenv("GDN_TEST_RECORD"); record != nullptr && std::string(record) == "1") {
        std::ofstream file(path);
        for (const std::string& row : rows) file << row << '\n';
    }
    std::ifstream file(path);
    std::vector<std::string> expected;
    for (std::string line; std::getline(file, line);) expected.push_back(line);
    ASSERT_EQ(rows.size(), expected.size()) << path;
    for (std::size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i], expected[i]);
}

}  // namespace
}  // namespace gdn_cuda::gdn
