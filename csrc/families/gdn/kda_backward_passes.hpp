// The passes of the backward of gated_delta_rule with a gate for every channel of the key, over as many key heads at a time as
// the workspace holds.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <algorithm>

#include "kda_backward.hpp"
#include "prepared.hpp"
#include "wanted_gradients.hpp"

namespace gdn_cuda::gdn {

struct KdaBackwardPasses {
    GdnCall call;
    DType io;
    Rows output_gradient, query_gradient, key_gradient, value_gradient;
    RecurrentStates initial, final_gradient, initial_gradient;  // fp32, contiguous
    Tagged gate_gradient, beta_gradient;                        // contiguous, or absent
    float* sums;                                                // KdaBackwardGradientsArgs
    WantedGradients wanted;

    i64 chunks() const { return chunk_indices(call.cu_seqlens.data != nullptr, call.sequences, call.tokens, kKdaTokens); }

    // A value head's bytes of each part of what is handed over.
    struct Sizes {
        i64 records, states, by_error;

        i64 bytes_per_head(WantedGradients wanted) const {
            return records + (wanted == WantedGradients::all ? 2 * states + 3 * by_error : 0);
        }
    };
    Sizes sizes() const {
        const int head_k = kda_backward_config(call.dk, io).head_k;
        const i64 record = head_k == 64    ? sizeof(KdaBackwardRecord<64>)
                           : head_k == 128 ? sizeof(KdaBackwardRecord<128>)
                                           : sizeof(KdaBackwardRecord<256>);
        return {chunks() * record, chunks() * call.dv * head_k * 2, chunks() * kKdaTokens * call.dv * 2};
    }

    static void prefetch(const GdnCall& call, DType io, const Target& target) {
        const KdaBackwardConfig config = kda_backward_config(call.dk, io);
        gdn_cuda::prefetch<KdaBackwardPrepare>(config, target);
        for (const Direction direction : {Direction::backward, Direction::forward})
            gdn_cuda::prefetch<KdaBackwardStates>({config.head_k, io, direction}, target);
        gdn_cuda::prefetch<KdaBackwardGradients>(config, target);
    }

    // `like`: a tensor on the device.
    void run(const Checks& check, std::optional<i64> given, const Tensor& like, const Target& target) const {
        const Sizes sizes = this->sizes();
        const i64 least = sizes.bytes_per_head(wanted) * call.heads_per_key,
                  workspace = given.value_or(std::max(i64{1} << 30, least));
        GDN_REQUIRE(check, least <= workspace, "workspace",
                    fmt::format("at least {} bytes, what the backward of one key head needs", least),
                    fmt::format("{}", workspace));
        if (call.heads == 0 || call.sequences == 0) return;
        const i64 all_key_heads = call.heads / call.heads_per_key,
                  key_heads = least > 0 ? std::min(all_key_heads, workspace / least) : all_key_heads;
        const Tensor memory = torch::stable::new_empty(like, {key_heads * least}, ScalarType::Byte);
        for (i64 first = 0; first < all_key_heads; first += key_heads)
            run_heads(first, std::min(key_heads, all_key_heads - first), sizes, static_cast<char*>(memory_of(memory)), target);
    }

  private:
    void run_heads(i64 first_key_head, i64 key_heads, const Sizes& sizes, char* memory, const Target& target) const {
        const i64 heads = key_heads * call.heads_per_key;
        const int first = static_cast<int>(first_key_head * call.heads_per_key);
        const bool all = wanted == WantedGradients::all;
        char *const states = memory + heads * sizes.records, *const gradients = states + heads * sizes.states,
                    *const by_error = gradients + heads * sizes.states, *const errors = by_error + heads * sizes.by_error;
        const KdaBackwardHandover handover{.records = memory,
                                           .states = all ? states : nullptr,
                                           .state_gradients = all ? gradients : nullptr,
                                           .by_error = all ? by_error : nullptr,
                                           .errors = all ? errors : nullptr,
                                           .chunks = chunks()};
        KdaBackwardPrepare::run({.call = call, .first_head = first, .to = handover}, heads, io, target);
        KdaBackwardStatesArgs chain{.value = output_gradient,
                                    .value_gradient = wanted == WantedGradients::state ? Rows{} : value_gradient,
                                    .initial = final_gradient,
                                    .last = initial_gradient,
                                    .to = handover,
                                    .cu_seqlens = call.cu_seqlens,
                                    .sequences = call.sequences,
                                    .tokens = call.tokens,
                                    .first_head = first,
                                    .dk = call.dk,
                                    .dv = call.dv};
        KdaBackwardStates::run(Direction::backward, chain, heads, io, target);
        if (!all) return;
        chain.value = call.value;
        chain.value_gradient = {};
        chain.initial = initial;
        chain.last = {};
        KdaBackwardStates::run(Direction::forward, chain, heads, io, target);
        KdaBackwardGradients::run({.call = call,
                                   .output_gradient = output_gradient,
                                   .query_gradient = query_gradient,
                                   .key_gradient = key_gradient,
                                   .gate_gradient = gate_gradient,
                                   .beta_gradient = beta_gradient,
                                   .sums = sums,
                                   .first_key_head = static_cast<int>(first_key_head),
                                   .from = handover},
                                  key_heads, io, target);
    }
};

}  // namespace gdn_cuda::gdn
