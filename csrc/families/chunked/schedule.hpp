// How gdn/prefill and gdn/prefill_ahead share a call among blocks, segments and launches: estimated times, and the schedule
// that is chosen by them.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/chunked/plan.cuh>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "../../launch/tuned.hpp"
#include "ahead.hpp"

namespace gdn_cuda::gdn {

inline constexpr int kMostSegments = 32;
// Packed sequences have room for one summary for so many tokens. A sequence of n segments has more than kShortestUneven n - 1
// chunks; it needs n - 1 summaries for segments, and at most (n - 4) / 2 for groups.
inline constexpr int kSummaryTokens = kShortestUneven * kChunk * 2 / 3;

// Value warpgroups per block, of kValueRows state rows each, and segments per sequence (chunked/segments.cuh).
struct ChunkedSplit {
    int value_groups = 1, segments = 1;

    constexpr bool operator==(const ChunkedSplit&) const = default;

    GDN_FIELDS(value_groups, segments)
};

// How long chained segments take: all but the first compute M's rows and L, wait for the states before them, and compute
// outputs.
struct ChunkedChain {
    bool is_cached = false;  // passes but the first read T and P, for which there is room
    float first_length = 1;  // the first segment's, which ends as the others' summaries are complete
    double chunk_ns = 0;     // all passes together
    double ns = std::numeric_limits<double>::infinity();
};

// Summaries (M, L) of a head with so many segments or fewer: one less than segments, and one for each group.
constexpr int most_summaries(int segments) {
    int most = 0;
    for (int fewer = 2; fewer <= segments; ++fewer) most = std::max(most, fewer - 1 + groups_of(fewer));
    return most;
}
// Steps of a chain at most: in a group, three for the exchange and another pass, and then those that a block follows.
constexpr int longest_chain(int segments, int group) {
    if (group == 1) return std::max(segments - 2, 0);
    int most = 0;
    for (int segment = 2; segment < segments; ++segment) {
        const int groups = std::max(segment - 3, 0) / group;
        most = std::max(most, groups + segment - 1 - groups * group);
    }
    return group - 1 + 3 + most;
}

struct ChunkedSchedule {
    // The launch that splits sequences into segments, or that has all of them unsplit.
    ChunkedSplit split;
    ChunkedConfig config;
    i64 sequences;   // that are split, at most
    i64 blocks;      // per segment
    bool by_length;  // with `deterministic`: a launch for long sequences, split by their own length, and one for the others
    int reach;       // warm-up chunks up to which a segment is warm-started, as its head has a fast decay
    UnevenSplit uneven;

    // Segments of a slow-decay head are chained (config.chained): summaries (M, L) between them, T and P cached for later
    // passes.
    ChunkedChain chain;
    i64 summaries, summaries_of_head;  // 0: a slow-decay head is not split
    int summaries_of_sequence;         // for each head: one for each segment but the last, and groups'
    int summary_tokens;   // if not 0, packed sequences are split by their own lengths: a summary for so many tokens
    i64 state_row_tiles;  // in the states between all segments
    i64 state_words, transition_words, cached_words;
    i64 chunks;  // in all sequences, at most

    // A launch before it for what is not split: all heads, if one has a slow decay and they are not chained; or short
    // sequences.
    bool two_launches;
    ChunkedConfig unsplit;
    AheadSchedule ahead;  // if it is gdn/prefill_ahead's; without `two_launches`, this is the only launch

    i64 readers(bool in_place) const { return in_place && split.segments > 1 ? blocks : 0; }
    i64 chain_words() const { return state_words + transition_words + cached_words; }
    i64 chain_counts(bool in_place) const { return readers(in_place) + summaries + state_row_tiles; }
    bool decides() const { return two_launches && !by_length; }  // which of two launches does the work
    i64 counts(bool in_place) const { return chain_counts(in_place) + ahead.counts() + decides(); }
    i64 workspace() const { return chain_words() + ahead.workspace(); }  // in 32-bit words
};

constexpr ChunkedConfig chunked_config(int dk, int value_groups, DType io) {
    if (dk > kLongestNarrowKey)
        return {.head_k = dk <= 192 ? 192 : 256, .value_groups = 1, .inverse_groups = 1, .stages = 3, .io = io};
    return {.head_k = dk <= 64   ? 64
                      : dk <= 96 ? 96
                                 : 128,
            .value_groups = value_groups,
            .inverse_groups = value_groups == 1 ? 2 : 1,
            .stages = 3,
            .io = io};
}

// Chooses a schedule. Times are estimates in ns. `split`: one that was measured to be faster than what they say.
class ChunkedScheduler {
  public:
    ChunkedScheduler(const ChunkedProblem& problem, int multiprocessors, const ChunkedPolicy& policy = kChunkedPolicy,
                     std::optional<ChunkedSplit> split = {})
        : problem_(problem),
          multiprocessors_(multiprocessors),
          policy_(policy),
          split_(split),
          chunks_(chunks_in(problem.tokens)),
          ahead_(ahead_schedule(problem, multiprocessors, policy)) {}

    ChunkedSchedule schedule() const {
        if (std::optional<ChunkedSchedule> schedule = by_length()) {
            ChunkedProblem others = problem_;  // that are not long
            others.tokens = std::min<i64>(problem_.tokens, kLongestUnsplit * kChunk);
            others.packed_tokens = std::min<i64>(problem_.packed_tokens, kLongestUnsplit * kChunk);
            return completed(*schedule, problem_.differ(), best_split(), {others, multiprocessors_, policy_});
        }
        ChunkedSchedule schedule{.split = best_split(), .sequences = problem_.sequences};
        const bool is_chained = estimate(schedule.split).is_chained;
        schedule.config.chained = is_chained;
        schedule.reach = reach(schedule.split);
        schedule.chain = chain(schedule.split);
        if (is_chained) schedule.uneven = uneven(schedule.split, schedule.chain);
        return completed(schedule, !is_chained || problem_.sequences * problem_.heads == 0, unsplit(schedule.split), *this);
    }

    struct Estimate {
        double fast_decay, slow_decay;  // ns, if all heads have that decay
        bool is_chained;                // rather than unsplit, where the decay is slow

        // Models have both, and a call takes as long as its slowest head.
        double weighed() const { return fast_decay + 2 * slow_decay; }
    };
    Estimate estimate(const ChunkedSplit& split) const {
        const double unsplit = unsplit_ns(split);
        if (split.segments == 1) return {unsplit, unsplit, false};
        const i64 segment_chunks = ceil_div(chunks_, split.segments);
        const double warm_started = chunks_ns(split, segment_chunks + policy_.warm_up_chunks) + policy_.segments_ns,
                     chained = chain(split).ns, second = launches_twice(split) ? policy_.second_launch_ns : 0;
        if (chained < unsplit + second) return {warm_started, chained, true};
        return {warm_started + second, unsplit + second, false};
    }

    // For all blocks to compute so many chunks each.
    double chunks_ns(const ChunkedSplit& split, i64 chunks) const {
        const i64 waves = ceil_div(blocks(split.value_groups) * split.segments, i64{multiprocessors_});
        if (problem_.is_wide()) return static_cast<double>(waves * chunks) * policy_.wide_chunk_ns;
        // If a head's last block has rows for only one of two value warpgroups, that one runs alone and faster; of several
        // waves, some are then shorter.
        const i64 tiles = row_tiles(split.value_groups);
        const bool half_empty =
            split.value_groups == 2 && ceil_div(problem_.dv, kValueRows) % 2 == 1 && (tiles == 1 || waves > 1);
        const double saved = half_empty ? (policy_.chunk_ns[2] - policy_.half_empty_chunk_ns) / static_cast<double>(tiles) : 0;
        return static_cast<double>(waves * chunks) * (policy_.chunk_ns[split.value_groups] - saved);
    }

    ChunkedChain chain(const ChunkedSplit& split) const {
        const i64 rows = split.value_groups * kValueRows;
        const i64 summaries = ceil_div(ceil_div(problem_.dk, rows), ceil_div(problem_.dv, rows)) + 1;  // M's rows, then L's
        ChunkedChain chain{.is_cached = cached_words(split.value_groups) <= policy_.most_cached_words};
        if (split.segments <= 3 || problem_.tokens < policy_.shortest_chained * kChunk) return chain;
        const double computed = chunks_ns(split, chunks_) / static_cast<double>(chunks_),
                     first_pass = computed + (chain.is_cached ? policy_.store_chunk_ns : 0),
                     many = cached_words(split.value_groups) > policy_.many_cached_words ? policy_.many_cached_chunk_ns : 0,
                     other_pass = chain.is_cached ? policy_.cached_chunk_ns[split.value_groups] + many : computed,
                     summary = first_pass + static_cast<double>(summaries - 1) * other_pass;
        chain.first_length = static_cast<float>(summary / computed);
        chain.chunk_ns = summary + other_pass;
        chain.ns = policy_.segments_ns + chain_ns(chain, split);
        return chain;
    }
    double chain_ns(const ChunkedChain& chain, const ChunkedSplit& split) const {
        return static_cast<double>(chunks_) / (chain.first_length + split.segments - 1) * chain.chunk_ns +
               longest_chain(split.segments, segments_in_group(split.segments)) * policy_.chain_step_ns[split.value_groups];
    }

    // The most chunks that a block may start before its segment and still beat what a slow decay takes. Searching for the start
    // costs about two chunks, and more for each chunk examined.
    int reach(const ChunkedSplit& split) const {
        const double segment_chunks = static_cast<double>(ceil_div(chunks_, split.segments)),
                     chunk = policy_.chunk_ns[split.value_groups];
        const double reach = (policy_.reach_share * estimate(split).slow_decay - policy_.segments_ns - segment_chunks * chunk) /
                             (chunk + policy_.search_chunk_ns);
        return static_cast<int>(std::clamp(reach, 1.0, 1e6));
    }

    // Splits into segments only to use SMs that would be idle.
    int most_segments(int value_groups) const {
        if (problem_.is_wide() || problem_.deterministic) return 1;
        const i64 idle = multiprocessors_ / std::max<i64>(blocks(value_groups), 1);
        return static_cast<int>(
            std::clamp<i64>(std::min(idle, problem_.tokens / (kShortestSegment * kChunk)), 1, kMostSegments));
    }
    int most_value_groups() const { return problem_.dv <= kValueRows || problem_.is_wide() ? 1 : 2; }
    ChunkedSplit best_split(int value_groups) const {
        const int most = most_segments(value_groups);
        ChunkedSplit best{value_groups, 1};
        for (int segments = 2; segments <= most; ++segments) {
            const ChunkedSplit split{value_groups, segments};
            if (estimate(split).weighed() < estimate(best).weighed()) best = split;
        }
        return best;
    }
    ChunkedSplit best_split() const {
        if (split_) return *split_;
        const ChunkedSplit one = best_split(1), two = best_split(2);
        if (most_value_groups() == 1) return one;
        if (one.segments == 1 && two.segments == 1)  // gdn/prefill_ahead, if it is faster, is as fast for both
            return chunks_ns(two, chunks_) <= chunks_ns(one, chunks_) ? two : one;
        return estimate(two).weighed() <= estimate(one).weighed() ? two : one;
    }

    // Where a sequence is alone, its slow-decay heads get more blocks than the others, so that all end at about the same time.
    UnevenSplit uneven(const ChunkedSplit& split, const ChunkedChain& chain) const {
        const int warm_up[] = {UnevenSplit::kFewChunks, policy_.more_warm_up_chunks};  // the other heads'
        UnevenSplit uneven{};
        if (problem_.sequences != 1 || problem_.heads > UnevenSplit::kMostHeads) return uneven;
        const i64 blocks = static_cast<i64>(problem_.heads) * split.segments;
        const int most = static_cast<int>(std::min<i64>(kMostSegments, chunks_ / kShortestSegment));
        for (const bool more : {false, true})
            for (int slow = 1; slow < problem_.heads; ++slow) {
                const i64 others = problem_.heads - slow;
                const auto ns = [&](int segments) {
                    const i64 warm_started = ceil_div(chunks_, (blocks - slow * segments) / others) + warm_up[more];
                    return std::max(chain_ns(chain, {split.value_groups, segments}),
                                    static_cast<double>(warm_started) * policy_.chunk_ns[split.value_groups] +
                                        policy_.uneven_search_ns[more][split.value_groups]);
                };
                double least = ns(split.segments) * policy_.uneven_share;
                for (int segments = split.segments + 1; segments <= most && slow * segments + others <= blocks; ++segments)
                    if (const double now = ns(segments); now < least) {
                        least = now;
                        uneven.segments[more][slow] = static_cast<unsigned char>(segments);
                        uneven.reach = policy_.uneven_reach;
                    }
            }
        return uneven;
    }

    // With `deterministic`, the split of a long sequence: as if it were alone and of policy.deterministic_tokens, but with
    // kShortestByLength chunks for each segment at least (kShortestUneven for heads that get more). `chain.first_length` and
    // `uneven` say where segments begin, so those are the same for every call; the rows of a block, which change no bits,
    // follow from the call. None: no sequence is split.
    std::optional<ChunkedSchedule> by_length() const {
        const i64 chunks = chunks_in(problem_.longest());
        if (!problem_.deterministic || problem_.is_wide() || chunks <= kLongestUnsplit || problem_.sequences == 0) return {};
        ChunkedProblem one = problem_;
        one.sequences = 1;
        one.tokens = policy_.deterministic_tokens;
        one.packed_tokens = 0;
        one.deterministic = false;
        ChunkedPolicy for_all_lengths = policy_;
        for_all_lengths.cached_chunk_ns[1] = policy_.deterministic_cached_chunk_ns;
        const ChunkedScheduler alone(one, multiprocessors_, for_all_lengths);
        ChunkedSchedule schedule{.split = alone.best_split(), .by_length = true, .reach = policy_.uneven_reach};
        const Estimate estimate = alone.estimate(schedule.split);
        if (!estimate.is_chained || estimate.slow_decay > policy_.deterministic_share * alone.unsplit_ns(schedule.split))
            return {};
        schedule.config.chained = true;
        schedule.chain = alone.chain(schedule.split);
        const int most = static_cast<int>(std::min<i64>(schedule.split.segments, chunks / kShortestByLength));
        if (most == schedule.split.segments) schedule.uneven = alone.uneven(schedule.split, schedule.chain);
        schedule.split.segments = most;
        schedule.sequences =
            problem_.differ() ? ceil_div(problem_.packed_tokens, i64{kLongestUnsplit * kChunk}) : problem_.sequences;
        // Blocks of one value warpgroup are faster, as long as all fit at once.
        const i64 segments = std::min(schedule.sequences * most, all_chunks() / kShortestByLength);
        if (problem_.heads * row_tiles(1) * segments <= multiprocessors_) schedule.split.value_groups = 1;
        schedule.chain.is_cached = cached_words(schedule.split.value_groups) <= policy_.most_cached_words;
        if (schedule.sequences * schedule.split.segments > kMostBlocks[2]) return {};
        return schedule;
    }

    i64 blocks(int value_groups) const { return problem_.sequences * problem_.heads * row_tiles(value_groups); }

    std::string explain() const {
        if (const std::optional<ChunkedSchedule> schedule = by_length())
            return fmt::format(
                "{} value rows a block; with deterministic=True, sequences of more than {} tokens have a segment for "
                "every {} tokens, at most {}{}; {} multiprocessors",
                schedule->split.value_groups * kValueRows, kLongestUnsplit * kChunk, kShortestByLength * kChunk,
                schedule->split.segments, explain(schedule->uneven), multiprocessors_);
        const ChunkedSplit split = best_split(), other = best_split(3 - split.value_groups);
        if (problem_.is_wide())
            return fmt::format("dk {} is above {}, so sequences are not split: {}; {} multiprocessors", problem_.dk,
                               kLongestNarrowKey, explain(split), multiprocessors_);
        return fmt::format("{}; against {}; {} multiprocessors", explain(split), explain(other), multiprocessors_);
    }

  private:
    i64 row_tiles(int value_groups) const { return ceil_div(problem_.dv, value_groups * kValueRows); }
    // Room for the chunks of all sequences. Those of packed sequence n begin at n + (its first token) / kChunk, so that no two
    // sequences share a place.
    i64 all_chunks() const {
        return problem_.packed_tokens > 0 ? problem_.packed_tokens / kChunk + problem_.sequences : problem_.sequences * chunks_;
    }
    i64 cached_words(int value_groups) const { return problem_.heads * row_tiles(value_groups) * all_chunks() * kCachedWords; }

    double ahead_ns() const {
        if (!ahead_) return std::numeric_limits<double>::infinity();
        return static_cast<double>(chunks_) * policy_.ahead_chunk_ns + ahead_.launches() * policy_.ahead_launch_ns;
    }
    // How unsplit sequences are computed where gdn/prefill_ahead is not faster: beside a split in the fastest configuration,
    // unless sequences are so short that the extra launch costs more than it saves.
    ChunkedSplit unsplit(const ChunkedSplit& split) const {
        if (split.segments == 1 || is_short_for_two()) return {split.value_groups, 1};
        return {
            problem_.dv > kValueRows && !problem_.is_wide() && chunks_ns({2, 1}, chunks_) <= chunks_ns({1, 1}, chunks_) ? 2 : 1,
            1};
    }
    bool is_short_for_two() const { return problem_.tokens < policy_.shortest_twice * kChunk; }
    // Whether gdn/prefill_ahead is faster on unsplit sequences; beside a split, where a second launch pays off at all.
    bool runs_ahead(const ChunkedSplit& split) const {
        if (split.segments > 1 && is_short_for_two()) return false;
        return ahead_ns() < chunks_ns(unsplit(split), chunks_);
    }
    // Whether another launch than the split one takes slow-decay heads, if they are not chained.
    bool launches_twice(const ChunkedSplit& split) const {
        return split.segments > 1 && (runs_ahead(split) || unsplit(split).value_groups != split.value_groups);
    }
    double unsplit_ns(const ChunkedSplit& split) const {
        return runs_ahead(split) ? ahead_ns() : chunks_ns(unsplit(split), chunks_);
    }

    // Sizes and launches. `others`: what is not split, if there may be any; `beside`: its blocks.
    ChunkedSchedule completed(ChunkedSchedule schedule, bool leaves_some, const ChunkedSplit& beside,
                              const ChunkedScheduler& others) const {
        const bool is_chained = schedule.config.chained;
        const int segments = schedule.split.segments;
        schedule.config = chunked_config(problem_.dk, schedule.split.value_groups, problem_.io);
        schedule.config.chained = is_chained;
        schedule.unsplit = chunked_config(problem_.dk, beside.value_groups, problem_.io);
        schedule.blocks = blocks(schedule.split.value_groups);
        schedule.chunks = all_chunks();

        schedule.summaries_of_sequence = is_chained ? most_summaries(std::max(segments, schedule.uneven.most())) : 0;
        schedule.summary_tokens = schedule.by_length && problem_.differ() ? kSummaryTokens : 0;
        schedule.summaries_of_head = schedule.summary_tokens > 0 ? problem_.packed_tokens / schedule.summary_tokens
                                                                 : schedule.sequences * schedule.summaries_of_sequence;
        schedule.summaries = problem_.heads * schedule.summaries_of_head;
        const i64 tiles = row_tiles(schedule.split.value_groups);
        schedule.state_row_tiles = schedule.summaries * tiles;
        schedule.state_words = 2 * schedule.summaries * tiles * schedule.config.rows_per_block() * schedule.config.head_k;
        schedule.transition_words =
            schedule.summaries * schedule.config.key_tiles() * kChunk * schedule.config.head_k;  // two 16-bit parts
        if (schedule.summaries > 0 && schedule.chain.is_cached)
            schedule.cached_words = cached_words(schedule.split.value_groups);

        const bool is_ahead = leaves_some && others.runs_ahead(schedule.by_length ? beside : schedule.split);
        if (is_ahead) schedule.ahead = others.ahead_;
        schedule.two_launches =
            leaves_some && segments > 1 && (is_ahead || schedule.by_length || schedule.unsplit != schedule.config);
        return schedule;
    }

    static std::string explain(const UnevenSplit& uneven) {
        return uneven.reach == 0 ? "" : fmt::format(", up to {} for slow-decay heads where others decay fast", uneven.most());
    }
    std::string explain(const ChunkedSplit& split) const {
        const Estimate ns = estimate(split);
        return fmt::format("{} value rows a block, {} segment{} a sequence: {:.0f} us, with slow-decay heads {:.0f}{}",
                           split.value_groups * kValueRows, split.segments, split.segments == 1 ? "" : "s",
                           ns.fast_decay / 1000, ns.slow_decay / 1000,
                           split.segments == 1 ? ""
                           : ns.is_chained     ? ", chained" + explain(uneven(split, chain(split)))
                                               : ", unsplit");
    }

    ChunkedProblem problem_;
    int multiprocessors_;
    ChunkedPolicy policy_;
    std::optional<ChunkedSplit> split_;
    i64 chunks_;           // chunks of a sequence of mean length
    AheadSchedule ahead_;  // if nothing is split
};

using ChunkedWinners = Winners<ChunkedProblem, ChunkedSplit>;

// The heuristic's choice first, then every other split that it weighs. None with `deterministic`: how a sequence is split
// follows from its length alone, on every device.
inline std::vector<ChunkedSplit> chunked_candidates(const ChunkedProblem& problem, const jit::DeviceTraits& device) {
    if (!problem.is_runnable()) return {};
    const ChunkedScheduler scheduler(problem, device.multiprocessors);
    std::vector<ChunkedSplit> all{scheduler.best_split()};
    if (problem.deterministic) return all;
    for (int groups = 1; groups <= scheduler.most_value_groups(); ++groups)
        for (int segments = 1; segments <= scheduler.most_segments(groups); ++segments)
            if (const ChunkedSplit other{groups, segments}; other != all.front()) all.push_back(other);
    return all;
}

inline std::string explain_chunked(const ChunkedProblem& problem, const jit::DeviceTraits& device,
                                   const ChunkedWinners* winners = nullptr) {
    if (const auto* winner = find(winners, problem)) return explain(*winner);
    return ChunkedScheduler(problem, device.multiprocessors).explain();
}

struct ChunkedTuning {
    GDN_TUNING(ChunkedTuning);

    using Problem = ChunkedProblem;
    using Choice = ChunkedSplit;
    static constexpr std::array kernels = {"gdn/prefill", "gdn/prefill_ahead"};
    static constexpr auto& candidates = chunked_candidates;
    static constexpr auto& explain = explain_chunked;
};

}  // namespace gdn_cuda::gdn
