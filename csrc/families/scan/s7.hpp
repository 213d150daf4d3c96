// scan/s7_product, scan/s7_outer and scan/s7_states on the host.
#pragma once

#include <array>
#include <gdn_cuda/kernels/scan/s7/plan.cuh>
#include <string>

#include "../../launch/spec.hpp"

namespace gdn_cuda::scan {

inline Blocks s7_blocks(const auto& config, i64 tokens, i64 rows, i64 batches) {
    return {ceil_div(tokens, config.tile()), ceil_div(rows, kS7Rows), batches};
}
inline std::string explain_s7(const auto& config, i64 columns) {
    return fmt::format("{} tokens of {} rows a thread, {} columns over {} warps", config.tokens(), kS7Rows, columns, kS7Warps);
}

struct S7Product {
    GDN_KERNEL(S7Product, scan, s7_product, S7ProductConfig, S7ProductArgs, "B u, C x and their transposes, of every token");

    static constexpr std::array kConfigurations = {Config{DType::bf16, true}, Config{DType::bf16, false},
                                                   Config{DType::f16, true},  Config{DType::f16, false},
                                                   Config{DType::f32, true},  Config{DType::f32, false}};
    static std::span<const Config> configurations() { return kConfigurations; }
    static int threads(const Config&) { return kS7Threads; }
    static int shared_bytes(const Config&) { return 0; }
    static void run(const Config& config, const Args& args, i64 batches, const Target& target) {
        if (args.tokens == 0 || args.rows == 0 || batches == 0) return;
        launch<S7Product>(config, args, s7_blocks(config, args.tokens, args.rows, batches), target,
                          [&](const auto&) { return explain_s7(config, args.columns); });
    }
};

struct S7Outer {
    GDN_KERNEL(S7Outer, scan, s7_outer, S7OuterConfig, S7OuterArgs,
               "gradients of B and C: products of states and inputs, of every token");

    static constexpr std::array kConfigurations = {Config{DType::bf16}, Config{DType::f16}, Config{DType::f32}};
    static std::span<const Config> configurations() { return kConfigurations; }
    static int threads(const Config&) { return kS7Threads; }
    static int shared_bytes(const Config&) { return 0; }
    static void run(const Config& config, const Args& args, i64 batches, const Target& target) {
        if (args.tokens == 0 || args.states_count == 0 || args.inputs_count == 0 || batches == 0) return;
        launch<S7Outer>(config, args, s7_blocks(config, args.tokens, args.states_count, batches), target,
                        [&](const auto&) { return explain_s7(config, args.inputs_count); });
    }
};

struct S7States {
    GDN_KERNEL(S7States, scan, s7_states, S7StatesConfig, S7StatesArgs,
               "x = (1 - 1/(A^2 + 1/2)) x + b, and in reverse its gradients");

    static constexpr std::array kConfigurations = {Config{DType::bf16, false}, Config{DType::bf16, true},
                                                   Config{DType::f16, false},  Config{DType::f16, true},
                                                   Config{DType::f32, false},  Config{DType::f32, true}};
    static std::span<const Config> configurations() { return kConfigurations; }
    static int threads(const Config&) { return kS7Threads; }
    static int shared_bytes(const Config&) { return 0; }
    static void run(const Config& config, const Args& args, i64 batches, const Target& target) {
        if (args.rows == 0 || batches == 0) return;
        launch<S7States>(config, args, {args.rows * batches, 1, 1}, target,
                         [&](const auto&) { return fmt::format("a row a block, {} tokens a tile", Config::tile()); });
    }
};

}  // namespace gdn_cuda::scan
