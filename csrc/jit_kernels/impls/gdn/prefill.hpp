// gdn/prefill on the host.
#pragma once

#include "../../../jit/tensor_map.hpp"
#include "../../heuristics/gdn.hpp"
#include "../spec.hpp"

namespace gdn_cuda::gdn {

struct PrefillTensors {
    jit::TiledTensor query, key, value, output;
    unsigned* readers;  // as many zeros as Prefill::readers says where states are updated in place, or nullptr
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

    // Counters that splitting sequences takes where states are updated in place.
    static i64 readers(const PrefillProblem& problem, const Target& target) {
        const jit::DeviceTraits& device = jit::device_traits(target.ordinal);
        const Config config = prefill_config(problem, device);
        return prefill_segments(problem, config, device) == 1 ? 0 : prefill_blocks(problem, config.value_groups);
    }

    static void run(const PrefillProblem& problem, const RecurrentArgs& recurrence, const PrefillTensors& tensors,
                    const Target& target) {
        if (recurrence.sequences == 0 || recurrence.heads == 0 || recurrence.dv == 0) return;
        const Config config = prefill_config(problem, jit::device_traits(target.ordinal));
        const int segments = prefill_segments(problem, config, jit::device_traits(target.ordinal));
        const auto map = [&](const jit::TiledTensor& tensor) { return jit::tile_map(tensor, problem.io, kChunk); };
        const Args args{.query = map(tensors.query),
                        .key = map(tensors.key),
                        .value = map(tensors.value),
                        .output = map(tensors.output),
                        .recurrence = recurrence,
                        .state = problem.state,
                        .segments = segments,
                        .readers = tensors.readers};
        const auto tiles = static_cast<unsigned>(ceil_div(problem.dv, config.rows_per_block()));
        const auto blocks = static_cast<unsigned>(problem.sequences * segments);
        launch<Prefill>(config, args, {tiles, static_cast<unsigned>(problem.heads), blocks}, target);
    }
};

}  // namespace gdn_cuda::gdn
