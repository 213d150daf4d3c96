// Causal and Hyena convolutions: gdn_cuda/conv has the formulas, docs/conv.md the edge cases. Gradients exist in Python only.
#pragma once

#include <gdn_cuda/arguments.hpp>
#include <tuple>

// Functions that take tensors would be hidden too.
#pragma GCC visibility push(default)

namespace gdn_cuda {

// A token or a few of every sequence. x: (B, D) or (B, D, T), with cu_seqlens (tokens, D) or (1, D, tokens); float32, bfloat16
// or float16. conv_state, which is updated: (B or slots, D, S). weight: (D, W), bias: (D).
struct GDN_HOLDS_TENSORS CausalConv1dUpdate {
    static constexpr const char* name = "causal_conv1d_update";
    Given x;
    Written conv_state;
    Given weight;
    OptionalTensor bias = {}, cache_seqlens = {}, conv_state_indices = {}, num_accepted_tokens = {}, cu_seqlens = {};
    std::optional<int64_t> null_slot = {};
    bool silu = false;
    Output out = {};

    GDN_FIELDS(x, conv_state, weight, bias, cache_seqlens, conv_state_indices, num_accepted_tokens, cu_seqlens, null_slot, silu,
               out)
};
// out
Tensor causal_conv1d_update(const CausalConv1dUpdate& arguments);

}  // namespace gdn_cuda

#pragma GCC visibility pop
