// Causal and Hyena convolutions: gdn_cuda/conv has the formulas, docs/conv.md the edge cases. Gradients exist in Python only.
#pragma once

#include <gdn_cuda/arguments.hpp>
#include <tuple>

// Functions that take tensors would be hidden too.
#pragma GCC visibility push(default)

namespace gdn_cuda {

// x: (B, D, L), float32, bfloat16 or float16. weight: (D, W), bias: (D). seq_idx: (B, L). initial_states: (B or sequences, D,
// W - 1).
struct GDN_HOLDS_TENSORS CausalConv1d {
    static constexpr const char* name = "causal_conv1d";
    Given x, weight;
    OptionalTensor bias = {}, seq_idx = {}, initial_states = {}, cu_seqlens = {};
    bool silu = false, return_final_states = false;

    GDN_FIELDS(x, weight, bias, seq_idx, initial_states, cu_seqlens, silu, return_final_states)
};
// (out, final states, which are empty unless asked for)
std::tuple<Tensor, Tensor> causal_conv1d(const CausalConv1d& arguments);

// From and to slots of a pool: conv_state (slots, D, W - 1 or more). state_indices, has_initial_state: (B or sequences).
struct GDN_HOLDS_TENSORS CausalConv1dPrefill {
    static constexpr const char* name = "causal_conv1d_prefill";
    Given x, weight;
    OptionalTensor bias = {};
    Written conv_state;
    OptionalTensor state_indices = {}, has_initial_state = {}, seq_idx = {}, cu_seqlens = {};
    bool silu = false;

    GDN_FIELDS(x, weight, bias, conv_state, state_indices, has_initial_state, seq_idx, cu_seqlens, silu)
};
// out
Tensor causal_conv1d_prefill(const CausalConv1dPrefill& arguments);

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
