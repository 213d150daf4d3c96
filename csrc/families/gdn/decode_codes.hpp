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
    std::array<DecodeCodesConfig, 10> all{};
    int n = 0;
    for (const auto& [stages, blocks] : {std::pair{3, 4}, {2, 4}, {4, 4}, {3, 5}, {4, 3}})
        for (const DType io : {DType::bf16, DType::f16})
            all[n++] = {.head_k = 128, .io = io, .stages = stages, .blocks = blocks};
    return all;
}();

// Fewer heads leave a warp without another one to load.
inline constexpr i64 kDecodeCodesHeadsPerMultiprocessor = 12;

// Nothing where gdn/decode computes the step: it is faster for few heads, and takes any alignment.
inline std::optional<DecodeCodesConfig> decode_codes_config(const DecodeProblem& problem, const DecodeArgs& args,
                                                            int multiprocessors) {
    const auto aligned = [](const void* data, i64 bytes, i64 more = 0) {
        return (reinterpret_cast<std::uintptr_t>(data) | static_cast<std::uintptr_t>(bytes | more)) % 16 == 0;
    };
    const bool fits = problem.state == DType::i8 && problem.fused_gates && !problem.channel_gates && problem.dk == 128 &&
                      problem.dv % DecodeCodesConfig::kTileRows == 0;
    if (!fits || !aligned(args.scales_in, 4 * args.scales_in_slot) ||
        !aligned(args.value.data, 2 * args.value.sequence, 2 * args.value.head) ||
        (std::getenv("GDN_CODES") == nullptr && problem.sequences * problem.heads < kDecodeCodesHeadsPerMultiprocessor * multiprocessors))
        return {};
    DecodeCodesConfig config = kDecodeCodesConfigurations[problem.io == DType::bf16 ? 0 : 1];
    if (const char* wanted = std::getenv("GDN_CODES")) {
        if (wanted[0] == 'o') return {};
        config.stages = wanted[0] - '0', config.blocks = wanted[1] - '0';
    }
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
        int part_bits = 0;
        const auto can_split = [&] { return tiles % (2 << part_bits) == 0; };
        while (can_split() && problem.sequences * problem.heads << (part_bits + 1) <= slots) ++part_bits;
        while (tiles >> part_bits > Config::kMostTiles) ++part_bits;
        const int columns = problem.heads << part_bits;
        const i64 units = problem.sequences * columns,
                  blocks = ceil_div(std::max(std::min(slots, units), i64{1}), Config::kWarps),
                  warps = blocks * Config::kWarps;
        const Args args{.step = step,
                        .units = static_cast<int>(units),
                        .columns = columns,
                        .tiles = tiles >> part_bits,
                        .part_bits = part_bits,
                        .warps = static_cast<int>(warps),
                        .sequences_ahead = static_cast<int>(warps / columns),
                        .columns_ahead = static_cast<int>(warps % columns),
                        .key_inverse = step.heads_per_key == 1 ? 0 : ~0u / static_cast<unsigned>(step.heads_per_key) + 1,
                        .copies = std::getenv("GDN_COPIES") != nullptr};
        launch<DecodeCodes>(config, args, {blocks, 1, 1}, target, [&](const auto&) {
            return fmt::format("{} heads in {} parts, {} stages", problem.sequences * problem.heads, 1 << part_bits, config.stages);
        });
    }
};

}  // namespace gdn_cuda::gdn
