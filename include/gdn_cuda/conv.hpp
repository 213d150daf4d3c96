// Causal and Hyena convolutions: gdn_cuda/conv has the formulas, docs/conv.md the edge cases. Gradients exist in Python only.
#pragma once

#include <gdn_cuda/options.hpp>
#include <tuple>

// Without this, functions that take tensors would be hidden.
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
// Returns (out, final states); the latter are empty without return_final_states.
std::tuple<Tensor, Tensor> causal_conv1d(const CausalConv1d& arguments);

// With states in slots of a pool: conv_state (slots, D, W - 1 or more), updated. state_indices, has_initial_state: (B or
// sequences).
struct GDN_HOLDS_TENSORS CausalConv1dPrefill {
    static constexpr const char* name = "causal_conv1d_prefill";
    Given x, weight;
    OptionalTensor bias = {};
    Written conv_state;
    OptionalTensor state_indices = {}, has_initial_state = {}, seq_idx = {}, cu_seqlens = {};
    bool silu = false;

    GDN_FIELDS(x, weight, bias, conv_state, state_indices, has_initial_state, seq_idx, cu_seqlens, silu)
};
// Returns out.
Tensor causal_conv1d_prefill(const CausalConv1dPrefill& arguments);

// One or a few tokens of every sequence. x: (B, D) or (B, D, T), with cu_seqlens (tokens, D) or (1, D, tokens); float32,
// bfloat16 or float16. conv_state, updated: (B or slots, D, S). weight: (D, W), bias: (D).
struct GDN_HOLDS_TENSORS CausalConv1dUpdate {
    static constexpr const char* name = "causal_conv1d_update";
    Given x;
    Written conv_state;
    Given weight;
    OptionalTensor bias = {}, cache_seqlens = {}, conv_state_indices = {};
    VerifyOptions verify = {};
    OptionalTensor cu_seqlens = {};
    std::optional<int64_t> null_slot = {};
    bool silu = false;
    Output out = {};

    GDN_FIELDS(x, conv_state, weight, bias, cache_seqlens, conv_state_indices, verify, cu_seqlens, null_slot, silu, out)
};
// Returns out.
Tensor causal_conv1d_update(const CausalConv1dUpdate& arguments);

// residues, log_poles: (rows, S), float32.
struct GDN_HOLDS_TENSORS HyenaFilter {
    Given residues, log_poles;
    int64_t L = 0;
};
// Returns (rows, L).
Tensor hyena_filter(const HyenaFilter& arguments);

// One or several tokens of a causal FIR filter. u, out: (B, D) or (B, D, T); fir_state, updated: (B or slots, D, K - 1);
// weight: (groups, 1, K); bias: (D).
struct GDN_HOLDS_TENSORS HyenaFirStep {
    static constexpr const char* name = "hyena_fir_step";
    Given u;
    Written fir_state;
    Given weight;
    OptionalTensor bias = {};
    bool gated_bias = false, flip_filter = false;
    OptionalTensor state_indices = {};
    std::optional<int64_t> null_slot = {};
    Output out = {};

    GDN_FIELDS(u, fir_state, weight, bias, gated_bias, flip_filter, state_indices, null_slot, out)
};
// Returns out.
Tensor hyena_fir_step(const HyenaFirStep& arguments);

// One or several tokens of a filter in modal form. x2, x1, v, out: (B, D) or (B, D, T); D: (D); residues: (groups, S);
// log_poles: the same or (groups, S, 1); state, updated: (B or slots, D, S).
struct GDN_HOLDS_TENSORS HyenaModalStep {
    static constexpr const char* name = "hyena_modal_step";
    Given x2, x1, v, D, residues, log_poles;
    Written state;
    OptionalTensor state_indices = {};
    std::optional<int64_t> null_slot = {};
    Output out = {};

    GDN_FIELDS(x2, x1, v, D, residues, log_poles, state, state_indices, null_slot, out)
};
// Returns out.
Tensor hyena_modal_step(const HyenaModalStep& arguments);

// x1, x2, v: (B, D, L), float32, bfloat16 or float16, contiguous or the transposed view of (B, L, D); other strides are
// slower. weight: (groups, 1, K), K up to 32, bias: (D), in the same dtype or float32. padding_mask: (B, L). initial_state: (B,
// D, K - 1).
struct GDN_HOLDS_TENSORS HyenaShort {
    static constexpr const char* name = "hyena_short";
    Given x1, x2, v, weight;
    OptionalTensor bias = {}, padding_mask = {}, initial_state = {};
    bool gated_bias = false;

    GDN_FIELDS(x1, x2, v, weight, bias, padding_mask, initial_state, gated_bias)
};
// Returns (y, state).
std::tuple<Tensor, Tensor> hyena_short(const HyenaShort& arguments);

// The same tensors, K up to 1024; the first tap multiplies the current token, and the bias is multiplied by x1 * v.
struct GDN_HOLDS_TENSORS HyenaMedium {
    static constexpr const char* name = "hyena_medium";
    Given x1, x2, v, weight, bias;
    OptionalTensor padding_mask = {}, initial_state = {};

    GDN_FIELDS(x1, x2, v, weight, bias, padding_mask, initial_state)
};
// Returns (y, state).
std::tuple<Tensor, Tensor> hyena_medium(const HyenaMedium& arguments);

// The same tensors. residues, log_poles: (groups, S), S up to 64; initial_state: (B, D, S).
struct GDN_HOLDS_TENSORS HyenaLong {
    static constexpr const char* name = "hyena_long";
    Given x1, x2, v, residues, log_poles, bias;
    OptionalTensor initial_state = {};

    GDN_FIELDS(x1, x2, v, residues, log_poles, bias, initial_state)
};
// Returns (y, state).
std::tuple<Tensor, Tensor> hyena_long(const HyenaLong& arguments);

}  // namespace gdn_cuda

#pragma GCC visibility pop
