// gdn/decode_codes on the host: which steps on int8 states it takes from gdn/decode, and its launch.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <gdn_cuda/kernels/gdn/decode_codes/plan.cuh>
#include <optional>
#include <string>

#include "../../launch/spec.hpp"
#include "decode.hpp"

namespace gdn_cuda::gdn {

inline constexpr std::array kDecodeCodesConfigurations = [] {
    std::array<DecodeCodesConfig, 20> all{};
    int n = 0;
    for (const auto& [stages, blocks] : {std::pair{3, 4}, {5, 4}, {4, 5}, {4, 3}, {7, 3}})
        for (const bool units : {false, true}) {
            all[n++] = {.head_k = 128, .io = DType::bf16, .stages = stages, .blocks = blocks, .units = units};
            all[n++] = {.head_k = 128, .io = DType::f16, .stages = stages, .blocks = blocks, .units = units};
        }
    return all;
}();

inline std::optional<DecodeCodesConfig> decode_codes_config(const DecodeProblem& problem, const DecodeArgs& args) {
    const char* wanted = std::getenv("GDN_CODES");
    if (wanted == nullptr || problem.state != DType::i8 || !problem.fused_gates || problem.channel_gates) return {};
    const auto aligned = [](const float* scales, i64 slot) { return (reinterpret_cast<std::uintptr_t>(scales) | 4 * slot) % 16 == 0; };
    if (problem.dk != 128 || !aligned(args.scales_in, args.scales_in_slot)) return {};
    const DecodeCodesConfig config{.head_k = problem.dk, .io = problem.io, .stages = wanted[0] - '0', .blocks = wanted[1] - '0', .units = wanted[2] == 'u'};
    if (std::ranges::find(kDecodeCodesConfigurations, config) == kDecodeCodesConfigurations.end()) return {};
    return config;
}

struct DecodeCodes {
    GDN_KERNEL(DecodeCodes, gdn, decode_codes, DecodeCodesConfig, DecodeCodesArgs,
               "one token a sequence, int8 states updated in place: many sequences", .uses_cutlass = true, .starts_early = true);

    static std::span<const Config> configurations() { return kDecodeCodesConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kDecodeCodesConfigurations, DecodeCodesSharedPlan>(config);
    }

    static void run(const Config& config, const DecodeProblem& problem, const DecodeArgs& step, const Target& target) {
        const int tiles = static_cast<int>(ceil_div(step.dv, Config::kTileRows));
        const i64 slots = i64{jit::device_traits(target.ordinal).multiprocessors} * config.blocks * Config::kWarps;
        int parts = 1;
        while (parts * 2 <= tiles && problem.sequences * problem.heads * parts * 2 <= slots) parts *= 2;
        const i64 units = problem.sequences * problem.heads * parts;
        const Args args{.step = step,
                        .sequences = static_cast<unsigned>(problem.sequences),
                        .heads = static_cast<unsigned>(problem.heads),
                        .tiles = static_cast<unsigned>(ceil_div(tiles, parts)),
                        .parts = static_cast<unsigned>(parts),
                        .copies = std::getenv("GDN_COPIES") != nullptr};
        const i64 blocks = std::max(i64{1}, std::min(slots, units) / Config::kWarps);
        launch<DecodeCodes>(config, args, {std::max(blocks, i64{1}), 1, 1}, target, [&](const auto&) {
            return fmt::format("{} heads in {} parts, {} stages", problem.sequences * problem.heads, parts, config.stages);
        });
    }
};

}  // namespace gdn_cuda::gdn
