// gdn/prefill on the host.
#pragma once

#include "../../../jit/tensor_map.hpp"
#include "../../heuristics/gdn.hpp"
#include "../spec.hpp"
#include "prefill_chain.hpp"

namespace gdn_cuda::gdn {

struct PrefillTensors {
    jit::TiledTensor query, key, value, output;
    unsigned* readers;  // zeros, where states are updated in place
    unsigned* workspace;
};

// How a problem is taken, and the 32-bit words that it needs for that.
struct PrefillChoice {
    PrefillConfig config;
    int segments, summaries;
    i64 readers, summary_states, summary_transfers, summary_links;

    i64 workspace() const { return summary_states + summary_transfers + summary_links; }
};

struct Prefill {
    using Config = PrefillConfig;
    using Args = PrefillArgs;
    static constexpr const char *family = "gdn", *name = "prefill", *config_type = "PrefillConfig", *args_type = "PrefillArgs";
    static constexpr const char* summary = "the chunked form on Hopper's tensor cores: prefill";
    static constexpr int min_capability = 90, max_capability = 90;
    static constexpr bool uses_cutlass = false;

    static std::span<const Config> configurations() { return kPrefillConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kPrefillConfigurations, PrefillSharedPlan>(config,
                                                                     std::make_index_sequence<kPrefillConfigurations.size()>());
    }

    static PrefillChoice choice(const PrefillProblem& problem, const Target& target) {
        const jit::DeviceTraits& device = jit::device_traits(target.ordinal);
        const PrefillSplit split = prefill_split(problem, device);
        const int segments = split.segments, summaries = prefill_summaries(problem, segments);
        const i64 all = problem.sequences * problem.heads * summaries;
        return {.config = prefill_config(problem, split),
                .segments = segments,
                .summaries = summaries,
                .readers = segments == 1 ? 0 : prefill_blocks(problem, split.value_groups),
                .summary_states = all * problem.dv * problem.dk,
                .summary_transfers = all * problem.dk * problem.dk,
                .summary_links = all};
    }

    static void run(const PrefillProblem& problem, const PrefillChoice& choice, const RecurrentArgs& recurrence,
                    const PrefillTensors& tensors, const Target& target) {
        if (recurrence.sequences == 0 || recurrence.heads == 0 || recurrence.dv == 0) return;
        const Config& config = choice.config;
        const auto map = [&](const jit::TiledTensor& tensor) { return jit::tile_map(tensor, problem.io, kChunk); };
        auto* words = reinterpret_cast<float*>(tensors.workspace);
        Args args{.query = map(tensors.query),
                  .key = map(tensors.key),
                  .value = map(tensors.value),
                  .output = map(tensors.output),
                  .recurrence = recurrence,
                  .state = problem.state,
                  .segments = choice.segments,
                  .summarizes = choice.summaries > 0,
                  .summaries = {.states = words,
                                .transfers = words + choice.summary_states,
                                .links = reinterpret_cast<int*>(words + choice.summary_states + choice.summary_transfers),
                                .count = choice.summaries},
                  .readers = nullptr};
        const auto tiles = [&](int rows) { return ceil_div(rows, config.rows_per_block()); };
        const auto run_pass = [&](i64 row_tiles, i64 parts) {
            launch<Prefill>(config, args,
                            {static_cast<unsigned>(row_tiles), static_cast<unsigned>(problem.heads),
                             static_cast<unsigned>(problem.sequences * parts)},
                            target);
        };
        if (args.summarizes) {
            run_pass(tiles(problem.dv) + tiles(problem.dk), choice.summaries);
            PrefillChain::run({args.summaries, problem.heads, problem.dk, problem.dv}, problem.sequences, target);
            args.summarizes = false;
        }
        args.readers = tensors.readers;
        run_pass(tiles(problem.dv), choice.segments);
    }
};

}  // namespace gdn_cuda::gdn
