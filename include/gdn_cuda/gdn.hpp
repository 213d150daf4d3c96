// Gated Delta Net: the operators of gdn_cuda/gdn, which says what each computes and takes.
#pragma once

#include <gdn_cuda/options.hpp>
#include <tuple>

// Functions that take tensors would be hidden too.
#pragma GCC visibility push(default)

namespace gdn_cuda {

enum class InferenceMode : int64_t { prefill = 0, decode = 1, spec_verify = 2 };

struct GDN_HOLDS_TENSORS RecurrentForward {
    static constexpr const char* name = "recurrent_forward";
    Given query, key, value;
    OptionalTensor state = {}, beta = {}, gate = {}, cu_seqlens = {};
    VerifyOptions verify = {};
    InferenceMode inference_mode = InferenceMode::prefill;
    bool is_qk_norm = false;
    std::optional<double> scale = {};
    GateOptions gates = {};
    GateBound bound = {};
    OptionalTensor has_initial_state = {};
    OptionalWritten final_state = {};
    OptionalTensor state_scales = {};   // if the state is int8
    OptionalWritten final_scales = {};  // if final_state is int8
    Output out = {};

    GDN_FIELDS(query, key, value, state, beta, gate, cu_seqlens, verify, inference_mode, is_qk_norm, scale, gates, bound,
               has_initial_state, final_state, state_scales, final_scales, out)
};
// (out, new state)
std::tuple<Tensor, Tensor> recurrent_forward(const RecurrentForward& arguments);

struct GDN_HOLDS_TENSORS FusedDecode {
    static constexpr const char* name = "fused_decode";
    Given query, key, value, a, b;
    DecodeGates gates;
    Written state_pool;
    OptionalTensor state_indices = {}, cu_seqlens = {};
    VerifyOptions verify = {};
    std::optional<int64_t> null_slot = {};
    StepStates steps = {};
    OptionalTensor parents = {}, has_initial_state = {}, write_indices = {};
    bool update_state = true;
    std::optional<double> scale = {};
    GateBound bound = {};
    bool use_qk_l2norm = true;
    OptionalWritten state_scales = {}, step_scales = {};  // for int8 states
    Output out = {};

    GDN_FIELDS(query, key, value, a, b, gates, state_pool, state_indices, cu_seqlens, verify, null_slot, steps, parents,
               has_initial_state, write_indices, update_state, scale, bound, use_qk_l2norm, state_scales, step_scales, out)
};
// out
Tensor fused_decode(const FusedDecode& arguments);

struct GDN_HOLDS_TENSORS ReplayDecode {
    static constexpr const char* name = "replay_decode";
    Given query, key, value, a, b;
    DecodeGates gates;
    Written state_pool, keys, updates, decays, banks;
    OptionalTensor state_indices = {}, cu_seqlens = {};
    VerifyOptions verify = {};
    std::optional<int64_t> null_slot = {};
    std::optional<double> scale = {};
    GateBound bound = {};
    bool use_qk_l2norm = true;
    Output out = {};

    GDN_FIELDS(query, key, value, a, b, gates, state_pool, keys, updates, decays, banks, state_indices, cu_seqlens, verify,
               null_slot, scale, bound, use_qk_l2norm, out)
};
// out
Tensor replay_decode(const ReplayDecode& arguments);

// Decode from a state that lacks the last tokens. The ring: keys (slots, W, Hk, dk), updates (slots, W, Hv, dv), decays (slots,
// W, Hv) fp32, pending (slots) int32.
struct GDN_HOLDS_TENSORS RingDecode {
    static constexpr const char* name = "ring_decode";
    Given query, key, value, a, b;
    DecodeGates gates;
    Written state_pool, keys, updates, decays, pending;
    OptionalTensor state_indices = {}, cu_seqlens = {};
    VerifyOptions verify = {};
    OptionalTensor fold_mask = {};      // (sequences) bool
    OptionalWritten state_scales = {};  // for an int8 pool: (slots, Hv, dv, dk / 32) fp32
    std::optional<int64_t> null_slot = {};
    std::optional<double> scale = {};
    GateBound bound = {};
    bool use_qk_l2norm = true;
    bool fold = false;  // every state takes every accepted token
    Output out = {};

    GDN_FIELDS(query, key, value, a, b, gates, state_pool, keys, updates, decays, pending, state_indices, cu_seqlens, verify,
               fold_mask, state_scales, null_slot, scale, bound, use_qk_l2norm, fold, out)
};
// out
Tensor ring_decode(const RingDecode& arguments);

struct GDN_HOLDS_TENSORS ChunkedForward {
    static constexpr const char* name = "chunked_forward";
    Given query, key, value;
    OptionalTensor beta = {}, gate = {}, state = {}, cu_seqlens = {};
    std::optional<double> scale = {};
    bool use_qk_l2norm = false;
    bool output_final_state = true;
    std::optional<ScalarType> state_dtype = {};
    int64_t checkpoint_every = 0;
    OptionalTensor checkpoint_offsets = {};  // not beside checkpoint_every
    bool deterministic = false;              // a sequence has the same bits in any batch: docs/numerics.md
    GateOptions gates = {};
    GateBound bound = {};
    OptionalTensor has_initial_state = {};
    OptionalWritten final_state = {}, checkpoints = {}, states_before = {};
    Output out = {};
    // `state` is then a pool, updated in place: the operator chunked_forward_pool in torch.
    OptionalTensor state_indices = {}, write_indices = {};
    bool update_state = true;
    OptionalWritten state_scales = {};  // for an int8 pool

    GDN_FIELDS(query, key, value, beta, gate, state, cu_seqlens, scale, use_qk_l2norm, output_final_state, state_dtype,
               checkpoint_every, checkpoint_offsets, deterministic, gates, bound, has_initial_state, final_state, checkpoints,
               states_before, out)
};
struct GDN_HOLDS_TENSORS ChunkedResult {
    Tensor output;
    OptionalTensor final_state = {};  // the pool with state_indices; none with output_final_state = false
    OptionalTensor checkpoints = {};  // with checkpoint_every or checkpoint_offsets
};
ChunkedResult chunked_forward(const ChunkedForward& arguments);

// chunked_forward with results that have gradients: everything is new, and the final state is contiguous fp32.
struct GDN_HOLDS_TENSORS GatedDeltaRule {
    static constexpr const char* name = "gated_delta_rule";
    Given query, key, value;
    OptionalTensor beta = {}, gate = {}, state = {}, cu_seqlens = {};
    std::optional<double> scale = {};
    bool use_qk_l2norm = false;
    bool deterministic = false;
    GateOptions gates = {};
    GateBound bound = {};
    OptionalTensor has_initial_state = {};
    bool recurrent = false;                 // the forward is recurrent_forward's, token by token
    std::optional<int64_t> workspace = {};  // bytes for the backward at a time; absent: by the device's memory

    GDN_FIELDS(query, key, value, beta, gate, state, cu_seqlens, scale, use_qk_l2norm, deterministic, gates, bound,
               has_initial_state, recurrent, workspace)
};
// (out, final state, checkpoints: fp32 states within long sequences, for the backward)
std::tuple<Tensor, Tensor, Tensor> gated_delta_rule(const GatedDeltaRule& arguments);

struct GDN_HOLDS_TENSORS GatedDeltaRuleBackward {
    static constexpr const char* name = "gated_delta_rule_backward";
    OptionalTensor grad_out = {}, grad_final_state = {};    // zeros where absent
    bool only_value_and_state = false, only_state = false;  // the other gradients are not computed
    OptionalTensor checkpoints = {};                        // of gated_delta_rule; without them it takes longer, or more memory
    GatedDeltaRule forward;

    GDN_FIELDS(grad_out, grad_final_state, only_value_and_state, only_state, checkpoints, forward)
};
struct GDN_HOLDS_TENSORS GatedDeltaRuleGradients {
    Tensor query, key, value;
    Tensor beta, gate, state, A_log, dt_bias;  // those of states and heads in fp32
    // A gradient that is not computed, or whose argument is absent, has no elements.
};
GatedDeltaRuleGradients gated_delta_rule_backward(const GatedDeltaRuleBackward& arguments);

struct GDN_HOLDS_TENSORS ChunkedSummary {
    static constexpr const char* name = "chunked_summary";
    Given key, value;
    OptionalTensor beta = {}, gate = {}, cu_seqlens = {}, state = {};
    bool transition = true;
    bool use_qk_l2norm = false;
    GateOptions gates = {};
    GateBound bound = {};
    Output out = {};

    GDN_FIELDS(key, value, beta, gate, cu_seqlens, state, transition, use_qk_l2norm, gates, bound, out)
};
// out: L above M
Tensor chunked_summary(const ChunkedSummary& arguments);

// States between dtypes; the arguments `out` and `out_scales` are written, of int8 states both.
struct GDN_HOLDS_TENSORS ConvertStates {
    static constexpr const char* name = "convert_states";
    Given states;
    std::optional<ScalarType> dtype = {};
    OptionalTensor scales = {}, state_indices = {}, write_indices = {};
    std::optional<int64_t> null_slot = {};
    OptionalWritten out = {}, out_scales = {};

    GDN_FIELDS(states, dtype, scales, state_indices, write_indices, null_slot, out, out_scales)
};
// (states, their scales: empty unless they are int8)
std::tuple<Tensor, Tensor> convert_states(const ConvertStates& arguments);

// States through the summaries of consecutive parts, or gradients of states from the last part to the first.
struct GDN_HOLDS_TENSORS FoldStates {
    static constexpr const char* name = "fold_states";
    Given state, additions, transitions;
    bool reverse = false;
    Output out = {};

    GDN_FIELDS(state, additions, transitions, reverse, out)
};
Tensor fold_states(const FoldStates& arguments);

struct GDN_HOLDS_TENSORS TransposeToMnMajor {
    static constexpr const char* name = "transpose_to_mn_major";
    Given input;
    int64_t alignment = 16;

    GDN_FIELDS(input, alignment)
};
Tensor transpose_to_mn_major(const TransposeToMnMajor& arguments);

struct GDN_HOLDS_TENSORS ChunkLocalCumsum {
    static constexpr const char* name = "chunk_local_cumsum_bf16";
    Given input;
    Written output;
    bool head_first = false;
    OptionalTensor cu_seqlens = {};

    GDN_FIELDS(input, output, head_first, cu_seqlens)
};
void chunk_local_cumsum_bf16(const ChunkLocalCumsum& arguments);

struct GDN_HOLDS_TENSORS ComputeUAndW {
    static constexpr const char* name = "bf16_gdn_compute_u_w";
    Given k, v;
    Written u, w;
    Given beta;
    OptionalTensor gate = {}, cu_seqlens = {};

    GDN_FIELDS(k, v, u, w, beta, gate, cu_seqlens)
};
void bf16_gdn_compute_u_w(const ComputeUAndW& arguments);

struct GDN_HOLDS_TENSORS ChunkedSeqStateUpdate {
    static constexpr const char* name = "bf16_chunked_seq_state_update";
    Given k;
    Written u;
    Given w;
    Written state, final_state;
    OptionalTensor gate = {};
    bool is_initial_state = false, output_final_state = true;
    OptionalTensor cu_seqlens = {};

    GDN_FIELDS(k, u, w, state, final_state, gate, is_initial_state, output_final_state, cu_seqlens)
};
void bf16_chunked_seq_state_update(const ChunkedSeqStateUpdate& arguments);

struct GDN_HOLDS_TENSORS ChunkedComputeO {
    static constexpr const char* name = "bf16_gdn_chunked_compute_O";
    Given q, state, k, u;
    Written o;
    OptionalTensor gate = {}, cu_seqlens = {};

    GDN_FIELDS(q, state, k, u, o, gate, cu_seqlens)
};
void bf16_gdn_chunked_compute_O(const ChunkedComputeO& arguments);

}  // namespace gdn_cuda

#pragma GCC visibility pop
