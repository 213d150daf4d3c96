// structured/toeplitz_eliminate on the host: which configuration runs a problem, and its launch.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/structured/toeplitz/eliminate_plan.cuh>
#include <string>
#include <vector>

#include "../../launch/spec.hpp"

namespace gdn_cuda::structured {

struct ToeplitzEliminateProblem {
    i64 systems, columns;  // columns: including the probe
    int n;
};

// More threads with fewer slots each are slower: a step is bound by chains of dependent arithmetic, not by its amount. Smaller
// clusters are for many systems, more right-hand sides per cluster for many right-hand sides.
inline constexpr std::array kToeplitzEliminateConfigurations{
    ToeplitzEliminateConfig{8, 128, 1, 2}, ToeplitzEliminateConfig{4, 128, 2, 2},  ToeplitzEliminateConfig{2, 128, 4, 2},
    ToeplitzEliminateConfig{2, 128, 4, 4}, ToeplitzEliminateConfig{8, 128, 2, 2},  ToeplitzEliminateConfig{4, 128, 4, 2},
    ToeplitzEliminateConfig{4, 128, 4, 4}, ToeplitzEliminateConfig{16, 128, 2, 2}, ToeplitzEliminateConfig{8, 128, 4, 2},
    ToeplitzEliminateConfig{8, 128, 4, 4}, ToeplitzEliminateConfig{16, 128, 4, 2}, ToeplitzEliminateConfig{16, 128, 4, 4}};
inline constexpr int kToeplitzEliminateLongest = kToeplitzEliminateConfigurations.back().rows();

// Measured on an H200, in ns per step: fixed cost, cost per row of a thread, cost of two more right-hand sides, and cost of
// stores to the other half of a GPC.
inline constexpr int kToeplitzEliminateStep = 580, kToeplitzEliminateSlot = 95, kToeplitzEliminateColumns = 90,
                     kToeplitzEliminateFar = 60;

// Clusters that run at the same time. A cluster is within one GPC, whose remaining SMs stay idle. Two blocks with few rows fit
// on one SM.
inline i64 toeplitz_eliminate_at_once(const ToeplitzEliminateConfig& config, const jit::DeviceTraits& device) {
    const i64 clusters = std::max(1, (device.multiprocessors - config.blocks) / config.blocks);
    return config.slots == 1 ? 2 * clusters : clusters;
}
inline i64 toeplitz_eliminate_cost(const ToeplitzEliminateProblem& problem, const ToeplitzEliminateConfig& config,
                                   const jit::DeviceTraits& device) {
    const i64 clusters = problem.systems * ceil_div(problem.columns, config.columns);
    const i64 step = kToeplitzEliminateStep + config.slots * kToeplitzEliminateSlot +
                     (config.columns > 2 ? kToeplitzEliminateColumns : 0) + (config.blocks > 8 ? kToeplitzEliminateFar : 0);
    return ceil_div(clusters, toeplitz_eliminate_at_once(config, device)) * step;
}
// Every GPU with clusters supports clusters of 8 blocks; some support larger ones.
inline constexpr int kToeplitzEliminatePortable = 8, kToeplitzEliminateLongestPortable = 4096;
// The cheapest configuration, the first if several cost the same.
inline ToeplitzEliminateConfig toeplitz_eliminate_config(const ToeplitzEliminateProblem& problem,
                                                         const jit::DeviceTraits& device, int most_blocks = 16) {
    const ToeplitzEliminateConfig* best = nullptr;
    for (const auto& config : kToeplitzEliminateConfigurations)
        if (config.rows() >= problem.n && config.blocks <= most_blocks &&
            (best == nullptr ||
             toeplitz_eliminate_cost(problem, config, device) < toeplitz_eliminate_cost(problem, *best, device)))
            best = &config;
    return *best;
}
inline std::string explain_toeplitz_eliminate(const ToeplitzEliminateProblem& problem, const ToeplitzEliminateConfig& config,
                                              const jit::DeviceTraits& device) {
    return fmt::format("{} rows on {} blocks of {} threads, {} each; {} clusters of {} right-hand sides, {} at once", problem.n,
                       config.blocks, config.threads, config.slots, problem.systems * ceil_div(problem.columns, config.columns),
                       config.columns, toeplitz_eliminate_at_once(config, device));
}

struct ToeplitzEliminate {
    GDN_KERNEL(ToeplitzEliminate, structured, toeplitz_eliminate, ToeplitzEliminateConfig, ToeplitzEliminateArgs,
               "long Toeplitz systems: the elimination of toeplitz_gko by a cluster of blocks", .min_capability = 90,
               .uses_cutlass = true);

    struct Known {
        Config config;
        int ordinal;
        bool fits;
    };
    static inline jit::Guarded<std::vector<Known>> known_fits;

    static std::span<const Config> configurations() { return kToeplitzEliminateConfigurations; }
    static int threads(const Config& config) { return 2 * config.threads; }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kToeplitzEliminateConfigurations, ToeplitzEliminateSharedPlan>(config);
    }
    static int cluster(const Config& config, const Args&) { return config.blocks; }

    // Whether the device can run clusters of this size; a MIG partition or a GPU with disabled SMs may not. The first call
    // loads the kernel.
    static bool fits(const Config& config, const Target& target) {
        const jit::DeviceTraits& device = jit::device_traits(target.ordinal);
        if (!runs_on(kernel, device)) return false;
        if (target.is_explained())  // an explained device that is not installed counts as complete
            return device.ordinal == jit::kStandIn || fits(config, {device.ordinal, nullptr});
        const auto all = known_fits.lock();
        for (const Known& known : *all)
            if (known.ordinal == target.ordinal && known.config == config) return known.fits;
        const auto& kernel = jit::kernel<JitSpec<ToeplitzEliminate>>(config, target.ordinal, target.stream);
        const auto shape = shape_of<ToeplitzEliminate>(config, {}, {config.blocks, 1, 1});
        all->push_back({config, target.ordinal, jit::most_clusters(kernel, shape, target.ordinal) > 0});
        return all->back().fits;
    }

    static void run(const Config& config, const ToeplitzEliminateProblem& problem, const Args& args, const Target& target) {
        if (problem.systems == 0 || problem.columns == 0 || problem.n == 0) return;
        const i64 blocks = problem.systems * ceil_div(problem.columns, config.columns) * config.blocks;
        launch<ToeplitzEliminate>(config, args, {blocks, 1, 1}, target,
                                  [&](const auto& device) { return explain_toeplitz_eliminate(problem, config, device); });
    }
};

}  // namespace gdn_cuda::structured
