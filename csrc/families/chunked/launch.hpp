// Host side of gdn/prefill: configuration and launch.
#pragma once

#include <algorithm>
#include <array>
#include <limits>

#include "../../jit/tensor_map.hpp"
#include "schedule.hpp"

namespace gdn_cuda::gdn {

constexpr int prefill_head_k(int dk) {
    return dk <= 64 ? 64 : dk <= 96 ? 96 : 128;
}
constexpr PrefillConfig prefill_config(int head_k, int value_groups, DType io) {
    return {.head_k = head_k, .value_groups = value_groups, .inverse_groups = value_groups == 1 ? 2 : 1, .stages = 3, .io = io};
}

inline PrefillConfig prefill_config(const PrefillProblem& problem, const PrefillSplit& split) {
    return prefill_config(prefill_head_k(problem.dk), split.value_groups, problem.io);
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
    bool by_length;
    i64 sequences;  // that are split, at most
    bool two;       // launches
    PrefillSpread spread;
    i64 links_of_head, links;  // 0: a head that remembers is not split
    i64 link_tiles;            // row tiles of all links
    int links_of_sequence;     // of a head: from each segment to the next, and groups'
    int link_tokens;           // if not 0, packed sequences are split by their own lengths, with a link for so many tokens
    i64 blocks;                // per segment
    i64 link_states, link_transfers, records;
    i64 chunks;          // of all sequences, at most
    float first_length;  // of a linked sequence's segments

    i64 readers(bool in_place) const { return in_place && segments > 1 ? blocks : 0; }
    i64 linked_words() const { return link_states + link_transfers + records; }
    i64 linked_counts(bool in_place) const { return readers(in_place) + links + link_tiles; }
    bool decides() const { return two && !by_length; }  // which of two launches does the work
    i64 counts(bool in_place) const { return linked_counts(in_place) + ahead.counts() + decides(); }
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

    // The last one of each thread is kept, as a model's layers call one after another with the same problem.
    static PrefillChoice choice(const PrefillProblem& problem, const Target& target) {
        struct Last {
            PrefillProblem problem;
            int multiprocessors = 0;
            PrefillChoice choice;
        };
        thread_local Last last{};
        const jit::DeviceTraits& device = jit::device_traits(target.ordinal);
        if (last.multiprocessors != device.multiprocessors || last.problem != problem)
            last = {problem, device.multiprocessors, choice(problem, device)};
        return last.choice;
    }
    static PrefillChoice choice(const PrefillProblem& problem, const jit::DeviceTraits& device) {
        const PrefillFixed fixed = prefill_fixed(problem, device);
        const PrefillSplit unfixed = prefill_split(problem, device), split = fixed ? fixed.split : unfixed,
                           whole = fixed ? unfixed : prefill_whole(problem, split, device);
        PrefillConfig config = prefill_config(problem, split);
        config.linked = fixed || prefill_cost(problem, split, device).linked;
        const PrefillLinked linked = fixed ? fixed.linked : prefill_linked(problem, split, device);
        const PrefillSpread spread = fixed           ? fixed.spread
                                     : config.linked ? prefill_spread(problem, split, linked)
                                                     : PrefillSpread{};
        const int most_segments = std::max(split.segments, spread.most()),
                  links_of_sequence = config.linked ? prefill_links(most_segments) : 0,
                  link_tokens = fixed && problem.differ() ? kPrefillLinkTokens : 0;
        const i64 sequences = fixed ? fixed.sequences : problem.sequences,
                  links_of_head = link_tokens > 0 ? problem.packed_tokens / link_tokens : sequences * links_of_sequence,
                  links = problem.heads * links_of_head;
        PrefillProblem unsplit = problem;  // as far as the launch without segments is concerned
        if (fixed) {
            unsplit.tokens = std::min<i64>(problem.tokens, kLongestWhole * kChunk);
            unsplit.packed_tokens = std::min<i64>(problem.packed_tokens, kLongestWhole * kChunk);
        }
        const bool leaves_some = fixed ? problem.differ() : links == 0,
                   is_ahead = leaves_some && prefill_runs_ahead(unsplit, fixed ? whole : split, device);
        const PrefillConfig of_whole = prefill_config(problem, whole);
        const i64 value_rows = ceil_div(problem.dv, config.rows_per_block()) * config.rows_per_block();
        return {.config = config,
                .whole = of_whole,
                .ahead = is_ahead ? prefill_ahead_choice(unsplit, device) : PrefillAheadChoice{},
                .segments = split.segments,
                .reach = fixed ? kPrefillUnevenReach : prefill_reach(problem, split, device),
                .by_length = static_cast<bool>(fixed),
                .sequences = sequences,
                .two = leaves_some && split.segments > 1 && (is_ahead || fixed || of_whole != config),
                .spread = spread,
                .links_of_head = links_of_head,
                .links = links,
                .link_tiles = links * ceil_div(problem.dv, config.rows_per_block()),
                .links_of_sequence = links_of_sequence,
                .link_tokens = link_tokens,
                .blocks = prefill_blocks(problem, split.value_groups),
                .link_states = 2 * links * value_rows * config.head_k,
                .link_transfers = links * config.key_tiles() * kChunk * config.head_k,  // two 16-bit parts
                .records = links > 0 && linked.records ? prefill_record_words(problem, split.value_groups) : 0,
                .chunks = prefill_all_chunks(problem),
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
        const PrefillLinks links{
            .states = tensors.workspace,
            .transfers = tensors.workspace + choice.link_states,
            .have_summary = have_summary,
            .have_state = have_summary + choice.links,
            .all = choice.links,
            .of_head = choice.links_of_head,
            .of_sequence = choice.links_of_sequence,
            .tokens = choice.link_tokens,
            .records = choice.records > 0 ? tensors.workspace + choice.link_states + choice.link_transfers : nullptr,
            .chunks = choice.chunks,
            .first = choice.first_length};
        const jit::TiledTensor transfers{
            {links.transfers, rows * 2 * columns, 2 * columns, columns}, choice.links, rows, 2, columns};
        const bool splits = choice.segments > 1, fixed = choice.by_length;
        Args args{.query = map(tensors.query),
                  .key = map(tensors.key),
                  .value = map(tensors.value),
                  .output = map(tensors.output),
                  .transfers = links.all > 0 ? map(transfers) : TensorMap{},
                  .recurrence = recurrence,
                  .state = problem.state,
                  .segments = choice.segments,
                  .by_length = choice.by_length,
                  .reach = choice.reach,
                  .takes = !choice.two ? PrefillTakes::every_call
                           : fixed     ? PrefillTakes::long_sequences
                                       : PrefillTakes::if_all_forget,
                  .links = links,
                  .decision = choice.decides() ? tensors.counts + choice.counts(tensors.in_place) - 1 : nullptr,
                  .readers = choice.readers(tensors.in_place) > 0 ? tensors.counts : nullptr,
                  .items = config.persistent ? static_cast<int>(choice.blocks) : 0,
                  .longest_first = prefill_takes_longest_first(choice.blocks, choice.segments, recurrence, device),
                  .spread = choice.spread};
        const auto why = [&](const auto& on) { return explain_prefill(problem, on); };
        if (config.persistent) {
            const auto why_persistent = [&](const auto& on) {
                return fmt::format("{}; a block takes {} sequences and heads in turn", explain_prefill(problem, on),
                                   ceil_div(choice.blocks, i64{on.multiprocessors}));
            };
            return launch<Prefill>(config, args, {device.multiprocessors, 1, 1}, target, why_persistent);
        }
        const auto launch_blocks = [&](const Config& of, const Args& with, i64 parts, const auto& why) {
            const i64 tiles = ceil_div(problem.dv, of.rows_per_block());
            launch<Prefill>(of, with, {tiles, problem.heads, parts}, target, why, is_second_of_two(with.takes));
        };
        const auto launch_whole = [&](Args with, const auto& why) {
            with.readers = nullptr;  // a single block reads and writes each state
            if (choice.ahead)
                return PrefillAhead::run({.head_k = config.head_k, .io = problem.io}, choice.ahead, with,
                                         tensors.workspace + choice.linked_words(),
                                         tensors.counts + choice.linked_counts(tensors.in_place), target, why);
            with.longest_first =
                prefill_takes_longest_first(prefill_blocks(problem, choice.whole.value_groups), 1, recurrence, device);
            launch_blocks(choice.whole, with, problem.sequences, why);
        };
        if (!splits && choice.ahead) return launch_whole(args, why);
        // First the launch that takes calls with a model's gates; in the other order it would wait.
        if (choice.two) {
            Args first = args;
            first.takes = fixed ? PrefillTakes::short_sequences : PrefillTakes::if_one_remembers;
            if (fixed) first.segments = 1;
            launch_whole(first, [&](const auto&) {
                return fixed ? "takes the sequences that are not split"
                             : "does the work if a head remembers across segments: no sequence is split then";
            });
        }
        launch_blocks(config, args, choice.sequences * choice.segments, why);
    }
};

}  // namespace gdn_cuda::gdn
