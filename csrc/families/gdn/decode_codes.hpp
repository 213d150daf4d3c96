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
#include "variables.hpp"

namespace gdn_cuda::gdn {

inline constexpr std::array kDecodeCodesConfigurations{
    DecodeCodesConfig{.head_k = 128, .io = DType::bf16, .stages = 3, .blocks = 4, .pairs = false},
    DecodeCodesConfig{.head_k = 128, .io = DType::f16, .stages = 3, .blocks = 4, .pairs = false},
    DecodeCodesConfig{.head_k = 128, .io = DType::bf16, .stages = 3, .blocks = 4, .pairs = true},
    DecodeCodesConfig{.head_k = 128, .io = DType::f16, .stages = 3, .blocks = 4, .pairs = true},
    DecodeCodesConfig{.head_k = 128, .io = DType::bf16, .stages = 4, .blocks = 4, .pairs = true},
    DecodeCodesConfig{.head_k = 128, .io = DType::bf16, .stages = 5, .blocks = 3, .pairs = true},
    DecodeCodesConfig{.head_k = 128, .io = DType::bf16, .stages = 3, .blocks = 4, .pairs = true, .mamba = true},
    DecodeCodesConfig{.head_k = 128, .io = DType::bf16, .stages = 4, .blocks = 4, .pairs = true, .mamba = true}};

// Fewer heads leave most warps without a second one to load.
inline constexpr i64 kDecodeCodesHeadsPerMultiprocessor = 12;

// Nothing where gdn/decode computes the step: it is faster for few heads, and takes any alignment.
inline std::optional<DecodeCodesConfig> decode_codes_config(const DecodeProblem& problem, const DecodeArgs& args,
                                                            int multiprocessors,
                                                            WantedSwitch wanted = WantedSwitch::automatic) {
    const auto aligned = [](const void* data, i64 bytes, i64 more = 0) {
        return (reinterpret_cast<std::uintptr_t>(data) | static_cast<std::uintptr_t>(bytes | more)) % 16 == 0;
    };
    const bool is_many = problem.sequences * problem.heads >= kDecodeCodesHeadsPerMultiprocessor * multiprocessors;
    const bool fits = problem.state == DType::i8 && problem.fused_gates && !problem.channel_gates && problem.dk == 128 &&
                      problem.dv % DecodeCodesConfig::kTileRows == 0 && aligned(args.scales_in, 4 * args.scales_in_slot) &&
                      aligned(args.value.data, 2 * args.value.sequence, 2 * args.value.head);
    if (!fits || wanted == WantedSwitch::never || (wanted == WantedSwitch::automatic && !is_many)) return {};
    const char* trial = std::getenv("GDN_TRY_CODES");
    if (trial != nullptr && problem.io == DType::bf16) return kDecodeCodesConfigurations[std::atoi(trial)];
    return kDecodeCodesConfigurations[problem.io == DType::bf16 ? 2 : 3];
}

// How warps share the rows of all heads.
struct DecodeCodesGrid {
    int part_bits, tiles;  // a head has 2^part_bits parts of so many tiles
    i64 units, blocks;
};
inline DecodeCodesGrid decode_codes_grid(const DecodeProblem& problem, const DecodeCodesConfig& config, int multiprocessors) {
    constexpr int kWarps = DecodeCodesConfig::kWarps;
    const i64 heads = problem.sequences * problem.heads, warps = i64{multiprocessors} * config.blocks * kWarps;
    const int tiles = problem.dv / DecodeCodesConfig::kTileRows;
    int bits = 0;
    while (tiles % (2 << bits) == 0 && (heads << (bits + 1)) <= warps) ++bits;
    const i64 units = heads << bits;
    return {.part_bits = bits,
            .tiles = tiles >> bits,
            .units = units,
            .blocks = std::max(ceil_div(std::min(warps, units), kWarps), i64{1})};
}

struct DecodeCodes {
    GDN_KERNEL(DecodeCodes, gdn, decode_codes, DecodeCodesConfig, DecodeCodesArgs,
               "one token a sequence, int8 states updated in place: many sequences", .uses_cutlass = true,
               .starts_early = true);

    static std::span<const Config> configurations() { return kDecodeCodesConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kDecodeCodesConfigurations, DecodeCodesSharedPlan>(config);
    }

    static void run(const Config& config, const DecodeProblem& problem, const DecodeArgs& step, const Target& target, const MambaScalars& mamba = {}) {
        const DecodeCodesGrid grid = decode_codes_grid(problem, config, jit::device_traits(target.ordinal).multiprocessors);
        if (grid.units == 0) return;
        const int columns = problem.heads << grid.part_bits;
        const i64 warps = grid.blocks * Config::kWarps;
        const Args args{.step = step,
                        .units = static_cast<int>(grid.units),
                        .columns = columns,
                        .tiles = grid.tiles,
                        .part_bits = grid.part_bits,
                        .warps = static_cast<int>(warps),
                        .sequences_ahead = static_cast<int>(warps / columns),
                        .columns_ahead = static_cast<int>(warps % columns),
                        .mamba = mamba,
                        .key_inverse = step.heads_per_key == 1 ? 0 : ~0u / static_cast<unsigned>(step.heads_per_key) + 1};
        launch<DecodeCodes>(config, args, {grid.blocks, 1, 1}, target, [&](const auto& device) {
            return fmt::format("{} heads of int8 states in {} parts each for {} warps on {} multiprocessors",
                               grid.units >> grid.part_bits, 1 << grid.part_bits, warps, device.multiprocessors);
        });
    }
};

}  // namespace gdn_cuda::gdn
