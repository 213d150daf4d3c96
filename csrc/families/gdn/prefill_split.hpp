// How gdn/prefill splits sequences into segments: estimated times, and the choices made from them.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/chunked/plan.cuh>
#include <limits>
#include <string>

#include "prefill_ahead.hpp"

namespace gdn_cuda::gdn {

inline i64 prefill_blocks(const PrefillProblem& problem, int value_groups) {
    return problem.sequences * problem.heads * ceil_div(problem.dv, value_groups * kValueRows);
}

// The split: value warpgroups per block, of kValueRows state rows each, and segments per sequence (prefill_segments.cuh).
struct PrefillSplit {
    int value_groups, segments;
};
inline constexpr int kMostSegments = 32;
// In tokens: from these lengths on, segments are linked, and a second launch pays off.
inline constexpr int kShortestLinked = 24 * kChunk, kShortestTwice = 80 * kChunk;

// Room for the chunks of all sequences. Those of packed sequence n begin at n + (its first token) / kChunk, so that no two
// sequences share a place.
inline i64 prefill_all_chunks(const PrefillProblem& problem) {
    return problem.packed_tokens > 0 ? problem.packed_tokens / kChunk + problem.sequences
                                     : problem.sequences * prefill_chunks(problem.tokens);
}
inline i64 prefill_record_words(const PrefillProblem& problem, int value_groups) {
    return problem.heads * ceil_div(problem.dv, value_groups * kValueRows) * prefill_all_chunks(problem) * kPrefillRecordWords;
}

// Estimated ns for all blocks to walk `chunks` chunks each, from times per chunk on an H200: a block with one value warpgroup
// is faster, a block with two shares the helper warpgroups' work.
inline constexpr double kPrefillNsOfChunk[] = {0, 1950, 2950};
inline double prefill_walk_ns(const PrefillProblem& problem, const PrefillSplit& split, i64 chunks,
                              const jit::DeviceTraits& device) {
    constexpr double kAloneNsOfChunk = 2300;
    const i64 waves = ceil_div(prefill_blocks(problem, split.value_groups) * split.segments, device.multiprocessors);
    // If a head's last block has rows for only one of two value warpgroups, that one runs alone and faster; of several waves,
    // some are then shorter.
    const i64 tiles = ceil_div(problem.dv, split.value_groups * kValueRows);
    const bool alone = split.value_groups == 2 && ceil_div(problem.dv, kValueRows) % 2 == 1 && (tiles == 1 || waves > 1);
    const double saved = alone ? (kPrefillNsOfChunk[2] - kAloneNsOfChunk) / static_cast<double>(tiles) : 0;
    return static_cast<double>(waves * chunks) * (kPrefillNsOfChunk[split.value_groups] - saved);
}

// How whole sequences are walked where gdn/prefill_ahead is not faster: in the fastest configuration, unless sequences are so
// short that the extra launch costs more than it saves.
inline PrefillSplit prefill_whole(const PrefillProblem& problem, const PrefillSplit& split, const jit::DeviceTraits& device) {
    const auto ns = [&](int groups) { return prefill_walk_ns(problem, {groups, 1}, prefill_chunks(problem.tokens), device); };
    if (problem.tokens < kShortestTwice) return {split.value_groups, 1};
    return {problem.dv > kValueRows && ns(2) <= ns(1) ? 2 : 1, 1};
}

// Whether gdn/prefill_ahead is faster on whole sequences; after a split, where a second launch pays off at all.
inline bool prefill_runs_ahead(const PrefillProblem& problem, const PrefillSplit& split, const jit::DeviceTraits& device) {
    if (split.segments > 1 && problem.tokens < kShortestTwice) return false;
    const PrefillSplit whole = split.segments == 1 ? split : prefill_whole(problem, split, device);
    return prefill_ahead_ns(problem, device) < prefill_walk_ns(problem, whole, prefill_chunks(problem.tokens), device);
}
// Whether another launch than the split one takes heads that remember, if they are not linked.
inline bool prefill_launches_twice(const PrefillProblem& problem, const PrefillSplit& split, const jit::DeviceTraits& device) {
    return split.segments > 1 && (prefill_runs_ahead(problem, split, device) ||
                                  prefill_whole(problem, split, device).value_groups != split.value_groups);
}
inline double prefill_whole_ns(const PrefillProblem& problem, const PrefillSplit& split, const jit::DeviceTraits& device) {
    if (prefill_runs_ahead(problem, split, device)) return prefill_ahead_ns(problem, device);
    const PrefillSplit whole = split.segments == 1 ? split : prefill_whole(problem, split, device);
    return prefill_walk_ns(problem, whole, prefill_chunks(problem.tokens), device);
}

// ns on an H200 that segments add to a call, besides the time of their chunks: search, first chunks of passes, counters.
inline constexpr double kPrefillSplitNs = 18000;

// Where segments are linked (prefill_segments.cuh), all but the first compute M's rows and L, are linked, and compute outputs;
// the passes but the first one read records, where there is room for them.
struct PrefillLinked {
    bool records;
    float first;         // length of the first segment, which ends as the others' summaries are complete
    double ns_of_chunk;  // of all passes
    double ns;           // estimated
};
// Links of a head with so many segments or fewer: one less than segments, and one for each group.
constexpr int prefill_links(int segments) {
    int most = 0;
    for (int fewer = 2; fewer <= segments; ++fewer) most = std::max(most, fewer - 1 + groups_of(fewer));
    return most;
}
// Links in a row at most: in a group, three for the exchange and another pass, and then those that a block follows.
constexpr int prefill_links_in_a_row(int segments, int group) {
    if (group == 1) return std::max(segments - 2, 0);
    int most = 0;
    for (int segment = 2; segment < segments; ++segment) {
        const int groups = std::max(segment - 3, 0) / group;
        most = std::max(most, groups + segment - 1 - groups * group);
    }
    return group - 1 + 3 + most;
}
inline double prefill_linked_ns(const PrefillLinked& linked, i64 chunks, const PrefillSplit& split) {
    constexpr double kLinkNs[] = {0, 2200, 4200};
    return static_cast<double>(chunks) / (linked.first + split.segments - 1) * linked.ns_of_chunk +
           prefill_links_in_a_row(split.segments, segments_in_group(split.segments)) * kLinkNs[split.value_groups];
}
inline PrefillLinked prefill_linked(const PrefillProblem& problem, const PrefillSplit& split, const jit::DeviceTraits& device) {
    constexpr double kExportNsOfChunk = 250, kImportNsOfChunk[] = {0, 1300, 1700};
    constexpr double kManyRecordsNsOfChunk = 200;  // from 160 MB of records on (1x32768 8/16)
    constexpr i64 kManyRecordWords = i64{40} << 20;
    const i64 rows = split.value_groups * kValueRows, chunks = prefill_chunks(problem.tokens);
    const i64 summaries = ceil_div(ceil_div(problem.dk, rows), ceil_div(problem.dv, rows)) + 1;  // M's rows, then L's
    PrefillLinked linked{.records = prefill_record_words(problem, split.value_groups) <= kMostPrefillRecordWords,
                         .first = 1,
                         .ns_of_chunk = 0,
                         .ns = std::numeric_limits<double>::infinity()};
    // The links' counters must be zeroed first, which does not pay off for short sequences.
    if (split.segments <= 3 || problem.tokens < kShortestLinked) return linked;
    const double computed = prefill_walk_ns(problem, split, chunks, device) / static_cast<double>(chunks),
                 first_pass = computed + (linked.records ? kExportNsOfChunk : 0),
                 imported = kImportNsOfChunk[split.value_groups] +
                            (prefill_record_words(problem, split.value_groups) > kManyRecordWords ? kManyRecordsNsOfChunk : 0),
                 other_pass = linked.records ? imported : computed,
                 summary = first_pass + static_cast<double>(summaries - 1) * other_pass;
    linked.first = static_cast<float>(summary / computed);
    linked.ns_of_chunk = summary + other_pass;
    linked.ns = kPrefillSplitNs + prefill_linked_ns(linked, chunks, split);
    return linked;
}

struct PrefillCost {
    double forgetting, remembering;  // ns, if all heads are of that kind
    bool linked;                     // linked rather than whole, if they remember

    // Models have both kinds of heads, and a call takes as long as its slowest.
    double weighed() const { return forgetting + 2 * remembering; }
};
inline constexpr double kSecondLaunchNs = 6000;  // what a second launch adds: the first decides which of the two computes
inline PrefillCost prefill_cost(const PrefillProblem& problem, const PrefillSplit& split, const jit::DeviceTraits& device) {
    constexpr i64 kWarmUpChunks = 2;
    const double whole = prefill_whole_ns(problem, split, device);
    if (split.segments == 1) return {whole, whole, false};
    const i64 share = ceil_div(prefill_chunks(problem.tokens), split.segments);
    const double apart = prefill_walk_ns(problem, split, share + kWarmUpChunks, device) + kPrefillSplitNs,
                 linked = prefill_linked(problem, split, device).ns,
                 second = prefill_launches_twice(problem, split, device) ? kSecondLaunchNs : 0;
    if (linked < whole + second) return {apart, linked, true};
    return {apart + second, whole + second, false};
}

// The most chunks that a block may start before its segment and still beat treating the head as one that remembers. Searching
// for the start costs about two chunks, plus a sixth of a chunk for each chunk examined.
inline int prefill_reach(const PrefillProblem& problem, const PrefillSplit& split, const jit::DeviceTraits& device) {
    constexpr double kWorthIt = 0.9, kSearchNsOfChunk = 350;
    const PrefillCost cost = prefill_cost(problem, split, device);
    const double share = static_cast<double>(ceil_div(prefill_chunks(problem.tokens), split.segments)),
                 of_chunk = kPrefillNsOfChunk[split.value_groups];
    const double reach = (kWorthIt * cost.remembering - kPrefillSplitNs - share * of_chunk) / (of_chunk + kSearchNsOfChunk);
    return static_cast<int>(std::clamp(reach, 1.0, 1e6));
}

// Splits into segments only to use SMs that would be idle.
inline PrefillSplit prefill_split(const PrefillProblem& problem, int value_groups, const jit::DeviceTraits& device) {
    const i64 idle = device.multiprocessors / std::max<i64>(prefill_blocks(problem, value_groups), 1);
    const int most =
        static_cast<int>(std::clamp<i64>(std::min(idle, problem.tokens / (kShortestSegment * kChunk)), 1, kMostSegments));
    PrefillSplit best{value_groups, 1};
    for (int segments = 2; segments <= most && !problem.deterministic; ++segments) {
        const PrefillSplit split{value_groups, segments};
        if (prefill_cost(problem, split, device).weighed() < prefill_cost(problem, best, device).weighed()) best = split;
    }
    return best;
}
inline PrefillSplit prefill_split(const PrefillProblem& problem, const jit::DeviceTraits& device) {
    const PrefillSplit one = prefill_split(problem, 1, device), two = prefill_split(problem, 2, device);
    if (problem.dv <= kValueRows) return one;
    if (one.segments == 1 && two.segments == 1) {  // gdn/prefill_ahead, if it is faster, is as fast for both
        const i64 chunks = prefill_chunks(problem.tokens);
        return prefill_walk_ns(problem, two, chunks, device) <= prefill_walk_ns(problem, one, chunks, device) ? two : one;
    }
    return prefill_cost(problem, two, device).weighed() <= prefill_cost(problem, one, device).weighed() ? two : one;
}

// Warm-up chunks up to which a head counts as one that forgets, where it does not depend on costs.
inline constexpr int kPrefillUnevenReach = 16;

// Where a sequence is alone, its heads that remember get more blocks than the others, so that all end at about the same time.
inline PrefillSpread prefill_spread(const PrefillProblem& problem, const PrefillSplit& split, const PrefillLinked& linked) {
    constexpr int kWarmUpChunks[] = {PrefillSpread::kFewChunks, 12};  // of the other heads
    constexpr double kSearchNs[][3] = {{0, 4000, 8000}, {0, 4000, 12000}}, kWorthIt = 0.97;
    PrefillSpread spread{};
    const i64 chunks = prefill_chunks(problem.tokens);
    if (problem.sequences != 1 || problem.heads >= PrefillSpread::kMostHeads) return spread;
    const i64 blocks = static_cast<i64>(problem.heads) * split.segments;
    const int most = static_cast<int>(std::min<i64>(kMostSegments, chunks / kShortestSegment));
    for (const bool more : {false, true})
        for (int many = 1; many < problem.heads; ++many) {
            const i64 others = problem.heads - many;
            const auto ns = [&](int segments) {
                const i64 apart = ceil_div(chunks, (blocks - many * segments) / others) + kWarmUpChunks[more];
                return std::max(
                    prefill_linked_ns(linked, chunks, {split.value_groups, segments}),
                    static_cast<double>(apart) * kPrefillNsOfChunk[split.value_groups] + kSearchNs[more][split.value_groups]);
            };
            double least = ns(split.segments) * kWorthIt;
            for (int segments = split.segments + 1; segments <= most && many * segments + others <= blocks; ++segments)
                if (const double now = ns(segments); now < least) {
                    least = now;
                    spread.segments[more][many] = static_cast<unsigned char>(segments);
                    spread.reach = kPrefillUnevenReach;
                }
        }
    return spread;
}

// With `deterministic`, the split of a long sequence: as if it were alone and of kTokens tokens, but with kShortestFixed chunks
// for each segment at least (kShortestUneven for heads that get more). Segments lie where `linked.first` and `spread` say, so
// those are the same for every call; the rows of a block, which change no bits, follow from the call.
struct PrefillFixed {
    static constexpr i64 kTokens = 32768;
    PrefillSplit split{};  // no segments: all sequences are whole
    PrefillLinked linked{};
    PrefillSpread spread{};
    i64 sequences = 0;  // long ones, at most

    explicit operator bool() const { return split.segments > 0; }
};
// Packed sequences have room for one link for so many tokens. A sequence of n segments has more than kShortestUneven n - 1
// chunks; it needs n - 1 links for segments, and at most (n - 4) / 2 for groups.
inline constexpr int kPrefillLinkTokens = kShortestUneven * kChunk * 2 / 3;
inline PrefillFixed prefill_fixed(const PrefillProblem& problem, const jit::DeviceTraits& device) {
    constexpr double kWorthIt = 0.9;
    const i64 chunks = prefill_chunks(problem.longest());
    if (!problem.deterministic || chunks <= kLongestWhole || problem.sequences == 0) return {};
    PrefillProblem alone = problem;
    alone.sequences = 1;
    alone.tokens = PrefillFixed::kTokens;
    alone.packed_tokens = 0;
    alone.deterministic = false;
    PrefillFixed fixed{.split = prefill_split(alone, device)};
    const PrefillCost cost = prefill_cost(alone, fixed.split, device);
    if (!cost.linked || cost.remembering > kWorthIt * prefill_whole_ns(alone, fixed.split, device)) return {};
    fixed.linked = prefill_linked(alone, fixed.split, device);
    const int most = static_cast<int>(std::min<i64>(fixed.split.segments, chunks / kShortestFixed));
    if (most == fixed.split.segments) fixed.spread = prefill_spread(alone, fixed.split, fixed.linked);
    fixed.split.segments = most;
    fixed.sequences = problem.differ() ? ceil_div(problem.packed_tokens, i64{kLongestWhole * kChunk}) : problem.sequences;
    // Blocks of one value warpgroup are faster, as long as all fit at once.
    const i64 segments = std::min(fixed.sequences * most, prefill_all_chunks(problem) / kShortestFixed);
    if (problem.heads * ceil_div(problem.dv, kValueRows) * segments <= device.multiprocessors) fixed.split.value_groups = 1;
    fixed.linked.records = prefill_record_words(problem, fixed.split.value_groups) <= kMostPrefillRecordWords;
    if (fixed.sequences * fixed.split.segments > kMostBlocks[2]) return {};
    return fixed;
}

inline std::string explain_uneven(const PrefillSpread& spread) {
    return spread.reach == 0 ? "" : fmt::format(", up to {} for heads that remember where others forget", spread.most());
}
inline std::string explain_prefill(const PrefillProblem& problem, const jit::DeviceTraits& device) {
    if (const PrefillFixed fixed = prefill_fixed(problem, device))
        return fmt::format(
            "{} value rows a block; with deterministic=True, sequences of more than {} tokens have a segment for "
            "every {} tokens, at most {}{}; {} multiprocessors",
            fixed.split.value_groups * kValueRows, kLongestWhole * kChunk, kShortestFixed * kChunk, fixed.split.segments,
            explain_uneven(fixed.spread), device.multiprocessors);
    const PrefillSplit split = prefill_split(problem, device), other = prefill_split(problem, 3 - split.value_groups, device);
    const auto text = [&](const PrefillSplit& way) {
        const PrefillCost cost = prefill_cost(problem, way, device);
        const PrefillSpread spread = prefill_spread(problem, way, prefill_linked(problem, way, device));
        return fmt::format("{} value rows a block, {} segment{} a sequence: {:.0f} us, with heads that remember {:.0f}{}",
                           way.value_groups * kValueRows, way.segments, way.segments == 1 ? "" : "s", cost.forgetting / 1000,
                           cost.remembering / 1000,
                           way.segments == 1 ? ""
                           : cost.linked     ? ", linked" + explain_uneven(spread)
                                             : ", whole");
    };
    return fmt::format("{}; against {}; {} multiprocessors", text(split), text(other), device.multiprocessors);
}

}  // namespace gdn_cuda::gdn
