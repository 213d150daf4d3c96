// Host side of gdn/kda_gradients: configuration, tensor maps and launch.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <gdn_cuda/kernels/gdn/kda_gradients/plan.cuh>

#include "backward_gradients.hpp"

namespace gdn_cuda::gdn {

inline constexpr std::array kKdaGradientsConfigurations = {KdaGradientsConfig{.io = DType::bf16},
                                                           KdaGradientsConfig{.io = DType::f16}};

struct KdaGradients {
    GDN_KERNEL(KdaGradients, gdn, kda_gradients, KdaGradientsConfig, KdaGradientsArgs,
               "Kimi Delta Attention, backward on Hopper's tensor cores: gradients of queries, keys, betas and gates",
               .min_capability = 90, .max_capability = 90, .uses_cutlass = true, .few_registers = true);

    static std::span<const Config> configurations() { return kKdaGradientsConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config&) { return sizeof(KdaGradientsPlan); }
    static int cluster(const Config&, const Args& args) { return Config::blocks(args.call.call.dk); }

    // What the kernel loads by TMA, as tensors.
    struct Tensors {
        jit::TiledTensor query, key, output_gradient, value_gradient, query_gradient, key_gradient, states, state_gradients,
            errors;

        explicit Tensors(const KdaGradientsCall& x) {
            const GdnCall& call = x.call;
            const bool packed = call.cu_seqlens.data != nullptr;
            const auto tokens = [&](const Rows& rows, i64 d) {
                return jit::TiledTensor{rows, packed ? 1 : call.sequences, call.tokens, call.heads, d};
            };
            query = tokens(call.query, call.dk);
            key = tokens(call.key, call.dk);
            output_gradient = tokens(x.output_gradient, call.dv);
            value_gradient = tokens(x.value_gradient, call.dv);
            query_gradient = tokens(x.query_gradient, call.dk);
            key_gradient = tokens(x.key_gradient, call.dk);
            states = states_of(x.from, x.from.states, call.heads, call.dk, call.dv);
            state_gradients = states_of(x.from, x.from.state_gradients, call.heads, call.dk, call.dv);
            errors = errors_of(x.from, call.heads, call.dv);
        }
        bool tile() const {
            return std::ranges::all_of(
                std::array{&query, &key, &output_gradient, &value_gradient, &query_gradient, &key_gradient},
                [](const jit::TiledTensor* each) { return jit::can_tile(*each); });
        }
    };

    // Whether the kernel takes rows of these sizes.
    static bool takes(i64 dk, i64 dv, i64 heads_per_key, const jit::DeviceTraits& device) {
        return device.capability == kHopper && heads_per_key == 1 && dk <= kKdaHeadK && dv > 0 && dv <= Config::kLongestValue;
    }
    static bool takes(const KdaGradientsCall& x, const jit::DeviceTraits& device) {
        // Gradients of gates are stored by pairs.
        const bool paired = x.call.dk % 2 == 0 && reinterpret_cast<std::uintptr_t>(x.gate_gradient.data) % 8 == 0;
        return paired && takes(x.call.dk, x.call.dv, x.call.heads_per_key, device) && Tensors(x).tile();
    }

    static void run(const KdaGradientsCall& x, DType io, const Target& target) {
        if (x.from.chunks == 0 || x.call.heads == 0 || x.call.dk == 0) return;
        const Tensors tensors(x);
        const auto map = [&](const jit::TiledTensor& tensor) { return jit::tile_map(tensor, io, kChunk, target.ordinal); };
        const Args args{.query = map(tensors.query),
                        .key = map(tensors.key),
                        .output_gradient = map(tensors.output_gradient),
                        .value_gradient = map(tensors.value_gradient),
                        .query_gradient = map(tensors.query_gradient),
                        .key_gradient = map(tensors.key_gradient),
                        .states = map(tensors.states),
                        .state_gradients = map(tensors.state_gradients),
                        .errors = map(tensors.errors),
                        .call = x};
        launch<KdaGradients>({.io = io}, args, {x.from.chunks * Config::blocks(x.call.dk), x.call.heads, 1}, target,
                             [&](const auto&) {
                                 return fmt::format("{} chunks of {} heads, {} block{} each", x.from.chunks, x.call.heads,
                                                    Config::blocks(x.call.dk), Config::blocks(x.call.dk) == 1 ? "" : "s");
                             });
    }
};

}  // namespace gdn_cuda::gdn
