// structured/vandermonde on the host: which configuration runs a problem, and its launch.
#pragma once

#include <array>
#include <gdn_cuda/kernels/structured/vandermonde/plan.cuh>
#include <string>
#include <vector>

#include "../../launch/spec.hpp"
#include "../../launch/tuned.hpp"
#include "../../launch/winners.hpp"

namespace gdn_cuda::structured {

struct VandermondeProblem {
    i64 rows, steps;
    DType io;  // of poles and residues: c64 or c128
    i64 poles;

    constexpr bool operator==(const VandermondeProblem&) const = default;

    GDN_FIELDS(rows, steps, poles, io)
};
using VandermondeWinners = Winners<VandermondeProblem, VandermondeConfig>;

// Per dtype, the largest square first.
inline constexpr std::array kVandermondeConfigurations = [] {
    constexpr auto of = [](DType io, int side) {
        return VandermondeConfig{.io = io, .side = side, .grid = 16, .poles = io == DType::c128 ? 16 : 32};
    };
    return std::array{of(DType::c64, 128), of(DType::c64, 64), of(DType::c64, 32), of(DType::c128, 64), of(DType::c128, 32)};
}();
inline i64 vandermonde_blocks(const VandermondeProblem& problem, const VandermondeConfig& config) {
    return problem.rows * ceil_div(problem.steps, config.square());
}
// A large square computes more outputs from the same tables; a small square wastes less of the last square and spreads few rows
// over more SMs.
inline VandermondeConfig vandermonde_config(const VandermondeProblem& problem, const jit::DeviceTraits& device,
                                            const VandermondeWinners* winners = nullptr) {
    if (const auto* winner = find(winners, problem)) return winner->choice;
    VandermondeConfig chosen{};
    for (const VandermondeConfig& config : kVandermondeConfigurations) {
        if (config.io != problem.io) continue;
        chosen = config;
        if (problem.steps > config.square() / 2 && vandermonde_blocks(problem, config) >= device.multiprocessors) break;
    }
    return chosen;
}

// The heuristic's choice, then the others.
inline std::vector<VandermondeConfig> vandermonde_candidates(const VandermondeProblem& problem,
                                                             const jit::DeviceTraits& device) {
    std::vector<VandermondeConfig> all{vandermonde_config(problem, device)};
    for (const VandermondeConfig& config : kVandermondeConfigurations)
        if (config.io == problem.io && config != all.front()) all.push_back(config);
    return all;
}

inline std::string explain_vandermonde(const VandermondeProblem& problem, const jit::DeviceTraits& device,
                                       const VandermondeWinners* winners = nullptr) {
    if (const auto* winner = find(winners, problem)) return explain(*winner);
    const VandermondeConfig config = vandermonde_config(problem, device);
    return fmt::format("tables of {0} by {0} powers give {1} steps a block: {2} blocks for {3} multiprocessors", config.side,
                       config.square(), vandermonde_blocks(problem, config), device.multiprocessors);
}

struct VandermondeTuning {
    GDN_TUNING(VandermondeTuning);

    using Problem = VandermondeProblem;
    using Choice = VandermondeConfig;
    static constexpr std::array kernels = {"structured/vandermonde"};
    static constexpr auto& candidates = vandermonde_candidates;
    static constexpr auto& explain = explain_vandermonde;
};

struct Vandermonde {
    GDN_KERNEL(Vandermonde, structured, vandermonde, VandermondeConfig, VandermondeArgs,
               "sums of powers, phases exact: a product of two small tables");

    static std::span<const Config> configurations() { return kVandermondeConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kVandermondeConfigurations, VandermondeSharedPlan>(config);
    }

    static void run(const VandermondeProblem& problem, const Args& args, const Target& target) {
        if (problem.rows == 0 || problem.steps == 0) return;
        const jit::DeviceTraits& device = jit::device_traits(target.ordinal);
        const Config config = vandermonde_config(problem, device, tuned<VandermondeTuning>(device));
        launch<Vandermonde>(config, args, {vandermonde_blocks(problem, config), 1, 1}, target,
                            [&](const auto& of) { return explain_vandermonde(problem, of, tuned<VandermondeTuning>(of)); });
    }
};

}  // namespace gdn_cuda::structured
