// gdn/prefill on the host.
#pragma once

#include "../../../jit/tensor_map.hpp"
#include "../../heuristics/gdn.hpp"
#include "../spec.hpp"

namespace gdn_cuda::gdn {

struct PrefillTensors {
    jit::TiledTensor query, key, value, output;
    bool in_place;     // the last states are written where the first are read
    unsigned* counts;  // zeros
    float* workspace;
};

// How a problem is taken, and the 32-bit words that it needs for that.
struct PrefillChoice {
    PrefillConfig config, whole;  // for sequences that are split, and for those that are not
    int segments, reach;
    int links_of_head;  // from segments to the next; 0: heads that remember are not split
    i64 links;          // of all heads
    i64 blocks;         // of a segment
    i64 link_states, link_transfers;

    i64 readers(bool in_place) const { return in_place && segments > 1 ? blocks : 0; }
    i64 linked_tiles() const { return blocks * links_of_head; }
    i64 counts(bool in_place) const { return readers(in_place) + links + linked_tiles(); }
    i64 workspace() const { return link_states + link_transfers; }
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
        const PrefillConfig config = prefill_config(problem, split);
        const int links_of_head = prefill_cost(problem, split, device).linked ? split.segments - 1 : 0;
        const i64 links = problem.sequences * problem.heads * links_of_head;
        const i64 value_rows = ceil_div(problem.dv, config.rows_per_block()) * config.rows_per_block();
        return {.config = config,
                .whole = prefill_config(problem, prefill_whole(problem, split, device)),
                .segments = split.segments,
                .reach = prefill_reach(problem, split, device),
                .links_of_head = links_of_head,
                .links = links,
                .blocks = prefill_blocks(problem, split.value_groups),
                .link_states = links * value_rows * config.head_k,
                .link_transfers = links * config.key_tiles() * kChunk * config.head_k};  // two parts of 16 bits
    }

    static void run(const PrefillProblem& problem, const PrefillChoice& choice, const RecurrentArgs& recurrence,
                    const PrefillTensors& tensors, const Target& target) {
        if (recurrence.sequences == 0 || recurrence.heads == 0 || recurrence.dv == 0) return;
        const Config& config = choice.config;
        const auto map = [&](const jit::TiledTensor& tensor) { return jit::tile_map(tensor, problem.io, kChunk); };
        const i64 columns = config.head_k, rows = config.key_tiles() * kChunk;
        unsigned* const have_summary = tensors.counts + choice.readers(tensors.in_place);
        const PrefillLinks links{.states = tensors.workspace,
                                 .transfers = tensors.workspace + choice.link_states,
                                 .have_summary = have_summary,
                                 .have_state = have_summary + choice.links,
                                 .count = choice.links_of_head};
        const jit::TiledTensor transfers{
            {links.transfers, rows * 2 * columns, 2 * columns, columns}, choice.links, rows, 2, columns};
        const bool two = choice.segments > 1 && choice.links_of_head == 0 && choice.whole != config;
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
                  .readers = choice.readers(tensors.in_place) > 0 ? tensors.counts : nullptr};
        const auto launch_blocks = [&](const Config& of, i64 segments, bool early_start) {
            const i64 tiles = ceil_div(problem.dv, of.rows_per_block());
            launch<Prefill>(of, args, {tiles, problem.heads, problem.sequences * segments}, target, early_start);
        };
        launch_blocks(config, choice.segments, false);
        if (!two) return;
        args.takes = PrefillTakes::if_one_remembers;
        args.readers = nullptr;  // one block reads a state and writes it
        launch_blocks(choice.whole, 1, true);
    }
};

}  // namespace gdn_cuda::gdn
