// gdn/decode_codes on the host: which steps on int8 states it takes from gdn/decode, and its launch.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <gdn_cuda/kernels/gdn/decode_codes/plan.cuh>
#include <optional>
#include <string>

#include "../../launch/spec.hpp"
#include "../common/code_step.hpp"
#include "decode.hpp"
#include "variables.hpp"

namespace gdn_cuda::gdn {

inline constexpr std::array kDecodeCodesConfigurations{
    CodeStepConfig{.head_k = 128, .io = DType::bf16, .stages = 3, .blocks = 4, .gated = false},
    CodeStepConfig{.head_k = 128, .io = DType::f16, .stages = 3, .blocks = 4, .gated = false}};

// Fewer heads leave most warps without a second one to load.
inline constexpr i64 kDecodeCodesHeadsPerMultiprocessor = 12;

// Nothing where gdn/decode computes the step: it is faster for few heads, and takes any alignment.
inline std::optional<CodeStepConfig> decode_codes_config(const DecodeProblem& problem, const DecodeArgs& args,
                                                         int multiprocessors, WantedSwitch wanted = WantedSwitch::automatic) {
    const auto aligned = [](const void* data, i64 bytes, i64 more = 0) {
        return (reinterpret_cast<std::uintptr_t>(data) | static_cast<std::uintptr_t>(bytes | more)) % 16 == 0;
    };
    const bool is_many = problem.sequences * problem.heads >= kDecodeCodesHeadsPerMultiprocessor * multiprocessors;
    const bool fits = problem.state == DType::i8 && problem.fused_gates && !problem.channel_gates && problem.dk == 128 &&
                      problem.dv % CodeStepConfig::kTileRows == 0 && aligned(args.scales_in, 4 * args.scales_in_slot) &&
                      aligned(args.value.data, 2 * args.value.sequence, 2 * args.value.head);
    if (!fits || wanted == WantedSwitch::never || (wanted == WantedSwitch::automatic && !is_many)) return {};
    return kDecodeCodesConfigurations[problem.io == DType::bf16 ? 0 : 1];
}

struct DecodeCodes {
    GDN_KERNEL(DecodeCodes, gdn, decode_codes, CodeStepConfig, DecodeCodesArgs,
               "one token a sequence, int8 states updated in place: many sequences", .uses_cutlass = true,
               .starts_early = true);

    static std::span<const Config> configurations() { return kDecodeCodesConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) { return plan_bytes<kDecodeCodesConfigurations, CodeStepSharedPlan>(config); }

    static void run(const Config& config, const DecodeProblem& problem, const DecodeArgs& step, const Target& target) {
        const CodeStepUnits units = code_step_units(config, problem.sequences, problem.heads, problem.dv, step.heads_per_key,
                                                    jit::device_traits(target.ordinal).multiprocessors);
        if (units.units > 0)
            launch<DecodeCodes>(config, {units, step}, code_step_blocks(units), target, explain_code_step(units));
    }
};

}  // namespace gdn_cuda::gdn
