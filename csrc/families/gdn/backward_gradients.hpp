// Host side of gdn/backward_gradients: configuration, tensor maps and launch.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/gdn/backward_gradients/plan.cuh>
#include <limits>
#include <string>

#include "../../jit/tensor_map.hpp"
#include "../../launch/spec.hpp"
#include "../chunked/problem.hpp"
#include "prefill_kernel.hpp"

namespace gdn_cuda::gdn {

inline constexpr std::array kHopperGradientsConfigurations = {
    HopperGradientsConfig{.key_tiles = 2, .io = DType::bf16}, HopperGradientsConfig{.key_tiles = 1, .io = DType::bf16},
    HopperGradientsConfig{.key_tiles = 2, .io = DType::f16}, HopperGradientsConfig{.key_tiles = 1, .io = DType::f16}};

// S or E of each chunk.
inline jit::TiledTensor states_of(const BackwardHandover& handover, void* states, i64 heads, i64 dk, i64 dv) {
    return {{states, dv * dk, dk, dv * dk}, heads * handover.chunks, dv, 1, dk};
}
// R of each chunk, in two parts of 64 tokens.
inline jit::TiledTensor errors_of(const BackwardHandover& handover, i64 heads, i64 dv) {
    return {{handover.errors, 2 * kChunk * dv, dv, kChunk * dv}, heads * handover.chunks, kChunk, 2, dv};
}

struct BackwardGradients {
    GDN_KERNEL(BackwardGradients, gdn, backward_gradients, HopperGradientsConfig, HopperGradientsArgs,
               "gradients of queries, keys, betas and gates on Hopper's tensor cores", .min_capability = 90,
               .max_capability = 90, .uses_cutlass = true);

    static std::span<const Config> configurations() { return kHopperGradientsConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kHopperGradientsConfigurations, HopperGradientsPlan>(config);
    }

    static Config config_of(int dk, DType io) {
        return {.key_tiles = static_cast<int>(ceil_div(i64{dk}, i64{kTileElements})), .io = io};
    }

    // What the kernel loads by TMA, as tensors.
    struct Tensors {
        jit::TiledTensor query, key, output_gradient, value_gradient, states, state_gradients, errors;

        explicit Tensors(const BackwardGradientsArgs& x) {
            const bool packed = x.cu_seqlens.data != nullptr;
            const auto tokens = [&](const Rows& rows, i64 heads, i64 d) {
                return jit::TiledTensor{rows, packed ? 1 : x.sequences, x.tokens, heads, d};
            };
            query = tokens(x.query, x.heads / x.heads_per_key, x.dk);
            key = tokens(x.key, x.heads / x.heads_per_key, x.dk);
            output_gradient = tokens(x.output_gradient, x.heads, x.dv);
            value_gradient = tokens(x.value_gradient, x.heads, x.dv);
            states = states_of(x.from, x.from.states, x.heads, x.dk, x.dv);
            state_gradients = states_of(x.from, x.from.state_gradients, x.heads, x.dk, x.dv);
            errors = errors_of(x.from, x.heads, x.dv);
        }
        bool tile() const {
            return std::ranges::all_of(std::array{&query, &key, &output_gradient, &value_gradient},
                                       [](const jit::TiledTensor* each) { return jit::can_tile(*each); });
        }
    };

    // Whether the kernel takes rows of these sizes. GDN_PREFILL is its variable too, as of all of chunked_forward.
    static bool takes(i64 dk, i64 dv, const jit::DeviceTraits& device) {
        return device.capability == kHopper && dv > 0 && dk <= kLongestNarrowKey &&
               wanted_prefill() == WantedPrefill::automatic;
    }
    static bool takes(const BackwardGradientsArgs& x, const jit::DeviceTraits& device) {
        return takes(x.dk, x.dv, device) && items_of(x) <= std::numeric_limits<int>::max() && Tensors(x).tile();
    }
    static i64 items_of(const BackwardGradientsArgs& x) { return x.from.chunks * (x.heads / x.heads_per_key); }

    static void run(const BackwardGradientsArgs& x, DType io, const Target& target) {
        const i64 items = items_of(x);
        if (items == 0 || x.dk == 0) return;
        const Tensors tensors(x);
        const auto map = [&](const jit::TiledTensor& tensor) { return jit::tile_map(tensor, io, kChunk, target.ordinal); };
        const Args args{.query = map(tensors.query),
                        .key = map(tensors.key),
                        .output_gradient = map(tensors.output_gradient),
                        .value_gradient = map(tensors.value_gradient),
                        .states = map(tensors.states),
                        .state_gradients = map(tensors.state_gradients),
                        .errors = map(tensors.errors),
                        .call = x,
                        .work_items = static_cast<int>(items)};
        const i64 blocks = std::min<i64>(items, jit::device_traits(target.ordinal).multiprocessors);
        launch<BackwardGradients>(config_of(x.dk, io), args, {blocks, 1, 1}, target, [&](const auto& on) {
            return fmt::format("{} chunks of key heads, {} a block; {} value heads a key head in turn", items,
                               ceil_div(items, i64{on.multiprocessors}), x.heads_per_key);
        });
    }
};

}  // namespace gdn_cuda::gdn
