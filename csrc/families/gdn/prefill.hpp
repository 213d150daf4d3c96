// Host side of gdn/prefill: configuration and launch.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/gdn/prefill_plan.cuh>
#include <limits>
#include <string>

#include "../../jit/tensor_map.hpp"
#include "prefill_ahead.hpp"

namespace gdn_cuda::gdn {

constexpr int prefill_head_k(int dk) {
    return dk <= 64 ? 64 : dk <= 96 ? 96 : 128;
}
constexpr PrefillConfig prefill_config(int head_k, int value_groups, DType io) {
    return {.head_k = head_k, .value_groups = value_groups, .inverse_groups = value_groups == 1 ? 2 : 1, .stages = 3, .io = io};
}

inline i64 prefill_blocks(const PrefillProblem& problem, int value_groups) {
    return problem.sequences * problem.heads * ceil_div(problem.dv, value_groups * kValueRows);
}

// The split: value warpgroups per block, of kValueRows state rows each, and segments per sequence (prefill_segments.cuh).
struct PrefillSplit {
    int value_groups, segments;
};
inline constexpr int kMostSegments = 32, kShortestLinked = 80 * kChunk;

// Chunks of a segment.
inline i64 prefill_share(const PrefillProblem& problem, const PrefillSplit& split) {
    return std::max<i64>(ceil_div(prefill_chunks(problem.tokens), split.segments), kShortestSegment);
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
    if (problem.tokens < kShortestLinked) return {split.value_groups, 1};
    return {problem.dv > kValueRows && ns(2) <= ns(1) ? 2 : 1, 1};
}

// Whether gdn/prefill_ahead is faster on whole sequences; after a split, where a second launch pays off at all.
inline bool prefill_runs_ahead(const PrefillProblem& problem, const PrefillSplit& split, const jit::DeviceTraits& device) {
    if (split.segments > 1 && problem.tokens < kShortestLinked) return false;
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

// Where segments are linked (prefill_segments.cuh), all but the first compute M's rows and L, are linked, and compute outputs;
// the passes but the first one read records, where there is room for them.
struct PrefillLinked {
    bool records;
    int group;           // segments whose M are multiplied first; 1: none
    float first;         // length of the first segment, which ends as the others' summaries are complete
    double ns_of_chunk;  // of all passes
    double ns;           // estimated
};
// Groups of segments, whose maps are multiplied first (prefill_segments.cuh).
constexpr int prefill_groups(int segments, int group) {
    return group > 1 ? std::max(segments - 4, 0) / group : 0;
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
struct PrefillGroups {
    int group, links_in_a_row;
};
inline constexpr std::array kPrefillGroups = [] {  // the best ones, by the number of segments
    std::array<PrefillGroups, kMostSegments + 1> all{};
    for (int segments = 0; segments <= kMostSegments; ++segments)
        for (int group = 1; group <= 8; ++group) {
            PrefillGroups& best = all[segments];
            const int links = prefill_links_in_a_row(segments, group);
            if (group == 1 || links < best.links_in_a_row) best = {group, links};
        }
    return all;
}();
inline double prefill_linked_ns(const PrefillLinked& linked, i64 chunks, const PrefillSplit& split) {
    constexpr double kLinkNs[] = {0, 2800, 4700};
    return static_cast<double>(chunks) / (linked.first + split.segments - 1) * linked.ns_of_chunk +
           kPrefillGroups[split.segments].links_in_a_row * kLinkNs[split.value_groups];
}
inline PrefillLinked prefill_linked(const PrefillProblem& problem, const PrefillSplit& split, const jit::DeviceTraits& device) {
    constexpr double kExportNsOfChunk = 250, kImportNsOfChunk[] = {0, 1300, 1700};
    const i64 rows = split.value_groups * kValueRows, chunks = prefill_chunks(problem.tokens);
    const i64 summaries = ceil_div(ceil_div(problem.dk, rows), ceil_div(problem.dv, rows)) + 1;  // M's rows, then L's
    const i64 record_words =
        prefill_blocks(problem, split.value_groups) * split.segments * prefill_share(problem, split) * kPrefillRecordWords;
    PrefillLinked linked{.records = record_words <= kMostPrefillRecordWords,
                         .group = kPrefillGroups[split.segments].group,
                         .first = 1,
                         .ns_of_chunk = 0,
                         .ns = std::numeric_limits<double>::infinity()};
    // The links' counters must be zeroed first, which does not pay off for short sequences.
    if (split.segments <= 3 || problem.tokens < kShortestLinked) return linked;
    const double computed = prefill_walk_ns(problem, split, chunks, device) / static_cast<double>(chunks),
                 first_pass = computed + (linked.records ? kExportNsOfChunk : 0),
                 other_pass = linked.records ? kImportNsOfChunk[split.value_groups] : computed,
                 summary = first_pass + static_cast<double>(summaries - 1) * other_pass;
    linked.first = static_cast<float>(summary / computed);
    linked.ns_of_chunk = summary + other_pass;
    linked.ns = prefill_linked_ns(linked, chunks, split);
    return linked;
}

struct PrefillCost {
    double forgetting, remembering;  // ns, if all heads are of that kind
    bool linked;                     // linked rather than whole, if they remember

    // Calls mix both kinds of heads; those that forget are more frequent.
    double weighed() const { return 2.5 * forgetting + remembering; }
};
inline constexpr double kSecondLaunchNs = 10000;  // what a second launch adds: the first decides which of the two computes
inline PrefillCost prefill_cost(const PrefillProblem& problem, const PrefillSplit& split, const jit::DeviceTraits& device) {
    constexpr i64 kWarmUpChunks = 2;
    constexpr double kSearchNs = 4000;
    const double whole = prefill_whole_ns(problem, split, device);
    if (split.segments == 1) return {whole, whole, false};
    const i64 share = ceil_div(prefill_chunks(problem.tokens), split.segments);
    const double apart = prefill_walk_ns(problem, split, share + kWarmUpChunks, device) + kSearchNs,
                 linked = prefill_linked(problem, split, device).ns,
                 second = prefill_launches_twice(problem, split, device) ? kSecondLaunchNs : 0;
    if (linked < whole + second) return {apart, linked, true};
    return {apart + second, whole + second, false};
}

// The most chunks that a block may start before its segment and still beat treating the head as one that remembers. Searching
// for the start costs about two chunks, plus a sixth of a chunk for each chunk examined.
inline int prefill_reach(const PrefillProblem& problem, const PrefillSplit& split, const jit::DeviceTraits& device) {
    constexpr double kWorthIt = 0.9, kSearchNs = 4000, kSearchNsOfChunk = 350;
    const PrefillCost cost = prefill_cost(problem, split, device);
    const double share = static_cast<double>(ceil_div(prefill_chunks(problem.tokens), split.segments)),
                 of_chunk = kPrefillNsOfChunk[split.value_groups];
    const double reach = (kWorthIt * cost.remembering - kSearchNs - share * of_chunk) / (of_chunk + kSearchNsOfChunk);
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
inline PrefillConfig prefill_config(const PrefillProblem& problem, const PrefillSplit& split) {
    return prefill_config(prefill_head_k(problem.dk), split.value_groups, problem.io);
}

inline std::string explain_prefill(const PrefillProblem& problem, const jit::DeviceTraits& device) {
    const PrefillSplit split = prefill_split(problem, device), other = prefill_split(problem, 3 - split.value_groups, device);
    const auto text = [&](const PrefillSplit& way) {
        const PrefillCost cost = prefill_cost(problem, way, device);
        return fmt::format("{} value rows a block, {} segment{} a sequence: {:.0f} us, with heads that remember {:.0f}{}",
                           way.value_groups * kValueRows, way.segments, way.segments == 1 ? "" : "s", cost.forgetting / 1000,
                           cost.remembering / 1000,
                           way.segments == 1 ? ""
                           : cost.linked     ? ", linked"
                                             : ", whole");
    };
    return fmt::format("{}; against {}; {} multiprocessors", text(split), text(other), device.multiprocessors);
}

inline constexpr std::array kPrefillConfigurations = [] {
    std::array<PrefillConfig, 30> all{};
    size_t n = 0;
    for (const DType io : {DType::bf16, DType::f16})
        for (const int head_k : {128, 96, 64}) {
            for (const int value_groups : {2, 1})
                for (const bool linked : {false, true}) {
                    all[n] = prefill_config(head_k, value_groups, io);
                    all[n++].linked = linked;
                }
            all[n] = prefill_config(head_k, 2, io);
            all[n++].persistent = true;
        }
    return all;
}();

// Whether the grid is persistent: one block per multiprocessor takes sequences one after another (prefill_items.cuh). Two waves
// are as fast without, and one is slower. Packed sequences differ in length, and a head's last rows may be fewer: blocks that
// start as others end share such work better. The loop over chunks has no room to store checkpoints, nor to leave outputs out.
inline bool prefill_is_persistent(const PrefillConfig& config, i64 blocks, int segments, const RecurrentArgs& recurrence,
                                  const jit::DeviceTraits& device) {
    constexpr i64 kLeastWaves = 3;
    const bool alike = recurrence.dv <= config.rows_per_block() || recurrence.dv % config.rows_per_block() == 0;
    return alike && config.value_groups == 2 && segments == 1 && ceil_div(blocks, i64{device.multiprocessors}) >= kLeastWaves &&
           blocks <= std::numeric_limits<int>::max() - device.multiprocessors && recurrence.cu_seqlens.data == nullptr &&
           recurrence.steps.data == nullptr && recurrence.outputs > 0;
}

// Whether blocks find the longest of packed sequences first (prefill_block.cuh): where all run at once, it is as good to start
// any.
inline bool prefill_takes_longest_first(i64 blocks, int segments, const RecurrentArgs& recurrence,
                                        const jit::DeviceTraits& device) {
    return recurrence.cu_seqlens.data != nullptr && recurrence.sequences <= kMostByLength && segments == 1 &&
           blocks > device.multiprocessors;
}

// Where one sequence's heads may differ, those that remember get more blocks, so that all end at about the same time.
inline PrefillSpread prefill_spread(const PrefillProblem& problem, const PrefillSplit& split, const PrefillLinked& linked) {
    constexpr int kReach = 16, kWarmUpChunks = 12;  // of heads that nearly remember
    constexpr double kSearchNs = 4000, kWorthIt = 0.97;
    PrefillSpread spread{};
    if (problem.sequences != 1 || problem.heads >= PrefillSpread::kMostHeads) return spread;
    const i64 chunks = prefill_chunks(problem.tokens), blocks = static_cast<i64>(problem.heads) * split.segments;
    const int most = static_cast<int>(std::min<i64>(kMostSegments, chunks / kShortestSegment));
    for (int many = 1; many < problem.heads; ++many) {
        const i64 others = problem.heads - many;
        const auto ns = [&](int segments) {
            const i64 apart = ceil_div(chunks, (blocks - many * segments) / others) + kWarmUpChunks;
            return std::max(prefill_linked_ns(linked, chunks, {split.value_groups, segments}),
                            static_cast<double>(apart) * kPrefillNsOfChunk[split.value_groups] + kSearchNs);
        };
        double least = ns(split.segments) * kWorthIt;
        for (int segments = split.segments + 1; segments <= most && many * segments + others <= blocks; ++segments)
            if (const double now = ns(segments); now < least) {
                least = now;
                spread.of[many] = {static_cast<unsigned char>(segments),
                                   static_cast<unsigned char>(kPrefillGroups[segments].group)};
                spread.reach = kReach;
            }
    }
    return spread;
}

struct PrefillTensors {
    jit::TiledTensor query, key, value, output;
    bool in_place;     // final states overwrite the initial states
    unsigned* counts;  // zeros
    float* workspace;
};

// How a problem is split, and its workspace in 32-bit words.
struct PrefillChoice {
    PrefillConfig config, whole;  // for split and for unsplit sequences
    PrefillAheadChoice ahead;     // if unsplit sequences take gdn/prefill_ahead
    int segments, reach;
    int links_of_head;  // from each segment to the next, and groups'; 0: heads that remember are not split
    int groups, group;  // of segments, and segments in each
    PrefillSpread spread;
    i64 links;   // of all heads
    i64 blocks;  // per segment
    i64 link_states, link_transfers, records;
    int records_each;
    float first_length;  // of a linked sequence's segments

    i64 readers(bool in_place) const { return in_place && segments > 1 ? blocks : 0; }
    i64 linked_words() const { return link_states + link_transfers + records; }
    i64 linked_tiles() const { return blocks * links_of_head; }
    i64 counts(bool in_place) const { return readers(in_place) + links + linked_tiles() + ahead.counts(); }
    i64 workspace() const { return linked_words() + ahead.workspace(); }
};

struct Prefill {
    using Config = PrefillConfig;
    using Args = PrefillArgs;
    static constexpr const char *family = "gdn", *name = "prefill", *config_type = "PrefillConfig", *args_type = "PrefillArgs";
    static constexpr const char* summary = "the chunked form on Hopper's tensor cores: prefill";
    static constexpr int min_capability = 90, max_capability = 90;
    static constexpr bool uses_cutlass = true;

    static std::span<const Config> configurations() { return kPrefillConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kPrefillConfigurations, PrefillSharedPlan>(config,
                                                                     std::make_index_sequence<kPrefillConfigurations.size()>());
    }

    static PrefillChoice choice(const PrefillProblem& problem, const Target& target) {
        const jit::DeviceTraits& device = jit::device_traits(target.ordinal);
        const PrefillSplit split = prefill_split(problem, device);
        PrefillConfig config = prefill_config(problem, split);
        config.linked = prefill_cost(problem, split, device).linked;
        const PrefillLinked linked = prefill_linked(problem, split, device);
        const PrefillSpread spread = config.linked ? prefill_spread(problem, split, linked) : PrefillSpread{};
        int most_segments = split.segments, groups = 0;
        const auto make_room = [&](int segments, int group) {
            most_segments = std::max(most_segments, segments);
            groups = std::max(groups, prefill_groups(segments, group));
        };
        if (config.linked) make_room(split.segments, linked.group);
        for (const PrefillSpread::Of& of : spread.of) make_room(of.segments, of.group);
        const int links_of_head = config.linked ? most_segments - 1 + groups : 0;
        const i64 links = problem.sequences * problem.heads * links_of_head;
        const bool is_ahead = links_of_head == 0 && prefill_runs_ahead(problem, split, device);
        const i64 value_rows = ceil_div(problem.dv, config.rows_per_block()) * config.rows_per_block();
        const i64 blocks = prefill_blocks(problem, split.value_groups), share = prefill_share(problem, split);
        const bool recorded = links > 0 && linked.records;
        return {.config = config,
                .whole = prefill_config(problem, prefill_whole(problem, split, device)),
                .ahead = is_ahead ? prefill_ahead_choice(problem, device) : PrefillAheadChoice{},
                .segments = split.segments,
                .reach = prefill_reach(problem, split, device),
                .links_of_head = links_of_head,
                .groups = groups,
                .group = linked.group,
                .spread = spread,
                .links = links,
                .blocks = blocks,
                .link_states = 2 * links * value_rows * config.head_k,
                .link_transfers = links * config.key_tiles() * kChunk * config.head_k,  // two 16-bit parts
                .records = recorded ? blocks * split.segments * share * kPrefillRecordWords : 0,
                .records_each = recorded ? static_cast<int>(share) : 0,
                .first_length = linked.first};
    }

    static void run(const PrefillProblem& problem, const PrefillChoice& choice, const RecurrentArgs& recurrence,
                    const PrefillTensors& tensors, const Target& target) {
        if (recurrence.sequences == 0 || recurrence.heads == 0 || recurrence.dv == 0) return;
        const jit::DeviceTraits& device = jit::device_traits(target.ordinal);
        Config config = choice.config;
        config.persistent = !choice.ahead && prefill_is_persistent(config, choice.blocks, choice.segments, recurrence, device);
        const auto map = [&](const jit::TiledTensor& tensor) {
            return jit::tile_map(tensor, problem.io, kChunk, target.ordinal);
        };
        const i64 columns = config.head_k, rows = config.key_tiles() * kChunk;
        unsigned* const have_summary = tensors.counts + choice.readers(tensors.in_place);
        const PrefillLinks links{.states = tensors.workspace,
                                 .transfers = tensors.workspace + choice.link_states,
                                 .have_summary = have_summary,
                                 .have_state = have_summary + choice.links,
                                 .all = choice.links,
                                 .count = choice.links_of_head,
                                 .records = tensors.workspace + choice.link_states + choice.link_transfers,
                                 .records_each = choice.records_each,
                                 .first = choice.first_length};
        const jit::TiledTensor transfers{
            {links.transfers, rows * 2 * columns, 2 * columns, columns}, choice.links, rows, 2, columns};
        const bool splits = choice.segments > 1,
                   two = splits && choice.links_of_head == 0 && (choice.ahead || choice.whole != config);
        Args args{.query = map(tensors.query),
                  .key = map(tensors.key),
                  .value = map(tensors.value),
                  .output = map(tensors.output),
                  .transfers = links.count > 0 ? map(transfers) : TensorMap{},
                  .recurrence = recurrence,
                  .state = problem.state,
                  .segments = choice.segments,
                  .reach = choice.reach,
                  .takes = two ? PrefillTakes::if_all_forget : PrefillTakes::every_call,
                  .links = links,
                  .decision = choice.ahead ? tensors.counts + choice.counts(tensors.in_place) - 1 : nullptr,
                  .readers = choice.readers(tensors.in_place) > 0 ? tensors.counts : nullptr,
                  .items = config.persistent ? static_cast<int>(choice.blocks) : 0,
                  .longest_first = prefill_takes_longest_first(choice.blocks, choice.segments, recurrence, device),
                  .groups = choice.groups,
                  .group = choice.group,
                  .spread = choice.spread};
        const auto why = [&](bool other) {
            return [&, other](const auto& device) {
                return other ? "does the work if a head remembers across segments: no sequence is split then"
                             : explain_prefill(problem, device);
            };
        };
        if (config.persistent) {
            const auto why_persistent = [&](const auto& on) {
                return fmt::format("{}; a block takes {} sequences and heads in turn", explain_prefill(problem, on),
                                   ceil_div(choice.blocks, i64{on.multiprocessors}));
            };
            return launch<Prefill>(config, args, {device.multiprocessors, 1, 1}, target, why_persistent);
        }
        const auto launch_blocks = [&](const Config& of, i64 segments, bool other) {
            const i64 tiles = ceil_div(problem.dv, of.rows_per_block());
            launch<Prefill>(of, args, {tiles, problem.heads, problem.sequences * segments}, target, why(other), other);
        };
        if (splits || !choice.ahead) launch_blocks(config, choice.segments, false);
        if (splits && !two) return;
        if (two) args.takes = PrefillTakes::if_one_remembers;
        args.readers = nullptr;  // a single block reads and writes each state
        if (choice.ahead)
            PrefillAhead::run({.head_k = config.head_k, .io = problem.io}, choice.ahead, args,
                              tensors.workspace + choice.linked_words(), tensors.counts + choice.readers(tensors.in_place),
                              target, two, why(two));
        else if (two)
            launch_blocks(choice.whole, 1, true);
    }
};

}  // namespace gdn_cuda::gdn
