// structured/toeplitz_eliminate on the host.
#pragma once

#include <vector>

#include "../../heuristics/structured_toeplitz.hpp"
#include "../spec.hpp"

namespace gdn_cuda::structured {

struct ToeplitzEliminate {
    using Config = ToeplitzEliminateConfig;
    using Args = ToeplitzEliminateArgs;
    static constexpr const char *family = "structured", *name = "toeplitz_eliminate", *config_type = "ToeplitzEliminateConfig",
                                *args_type = "ToeplitzEliminateArgs";
    static constexpr const char* summary = "long Toeplitz systems: the elimination of toeplitz_gko by a cluster of blocks";
    static constexpr int min_capability = 90;
    static constexpr bool uses_cutlass = true;

    struct Known {
        Config config;
        int ordinal;
        bool fits;
    };
    static inline jit::Guarded<std::vector<Known>> known_fits;

    static std::span<const Config> configurations() { return kToeplitzEliminateConfigurations; }
    static int threads(const Config& config) { return 2 * config.threads; }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kToeplitzEliminateConfigurations, ToeplitzEliminateSharedPlan>(
            config, std::make_index_sequence<kToeplitzEliminateConfigurations.size()>());
    }
    static int cluster(const Config& config) { return config.blocks; }

    // Whether the device has clusters of this size, which loads the kernel at the first call. A partition of a GPU, or one with
    // multiprocessors that are off, may not.
    static bool fits(const Config& config, const Target& target) {
        if (!runs_on<ToeplitzEliminate>(jit::device_traits(target.ordinal))) return false;
        const auto all = known_fits.lock();
        for (const Known& known : *all)
            if (known.ordinal == target.ordinal && known.config == config) return known.fits;
        const auto& kernel = jit::kernel<JitSpec<ToeplitzEliminate>>(config, target.ordinal, target.stream);
        const auto shape = shape_of<ToeplitzEliminate>(config, {config.blocks, 1, 1});
        all->push_back({config, target.ordinal, jit::most_clusters(kernel, shape, target.ordinal) > 0});
        return all->back().fits;
    }

    static void run(const Config& config, const ToeplitzEliminateProblem& problem, const Args& args, const Target& target) {
        if (problem.systems == 0 || problem.columns == 0 || problem.n == 0) return;
        const i64 blocks = problem.systems * ceil_div(problem.columns, config.columns) * config.blocks;
        launch<ToeplitzEliminate>(config, args, {blocks, 1, 1}, target);
    }
};

}  // namespace gdn_cuda::structured
