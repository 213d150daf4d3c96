// Gated Delta Net: the operators of gdn_cuda/gdn, which says what each computes and takes.
#pragma once

#include <gdn_cuda/arguments.hpp>
#include <tuple>

// Functions that take tensors would be hidden too.
#pragma GCC visibility push(default)

namespace gdn_cuda {

struct GDN_HOLDS_TENSORS FusedGdnGating {
    static constexpr const char* name = "fused_gdn_gating";
    Given A_log, dt_bias, a, b;

    static void fields(auto& x, auto&& visit) {
        visit("A_log", x.A_log);
        visit("dt_bias", x.dt_bias);
        visit("a", x.a);
        visit("b", x.b);
    }
};
// (beta, gate)
std::tuple<Tensor, Tensor> fused_gdn_gating(const FusedGdnGating& arguments);

enum class InferenceMode : int64_t { prefill = 0, decode = 1, spec_verify = 2 };

struct GDN_HOLDS_TENSORS RecurrentForward {
    static constexpr const char* name = "recurrent_forward";
    Given query, key, value;
    OptionalTensor state = {};
    Given beta, gate;
    OptionalTensor cu_seqlens = {}, num_accepted_tokens = {};
    InferenceMode inference_mode = InferenceMode::prefill;
    bool is_qk_norm = false;
    std::optional<double> scale = {};
    Output out = {};

    static void fields(auto& x, auto&& visit) {
        visit("query", x.query);
        visit("key", x.key);
        visit("value", x.value);
        visit("state", x.state);
        visit("beta", x.beta);
        visit("gate", x.gate);
        visit("cu_seqlens", x.cu_seqlens);
        visit("num_accepted_tokens", x.num_accepted_tokens);
        visit("inference_mode", x.inference_mode);
        visit("is_qk_norm", x.is_qk_norm);
        visit("scale", x.scale);
        visit("out", x.out);
    }
};
// (out, new state)
std::tuple<Tensor, Tensor> recurrent_forward(const RecurrentForward& arguments);

struct GDN_HOLDS_TENSORS FusedDecode {
    static constexpr const char* name = "fused_decode";
    Given query, key, value, a, b, A_log, dt_bias;
    Written state_pool;
    OptionalTensor state_indices = {}, cu_seqlens = {}, num_accepted_tokens = {};
    std::optional<int64_t> null_slot = {};
    OptionalWritten step_states = {};
    OptionalTensor step_slots = {};
    std::optional<double> scale = {};
    bool use_qk_l2norm = true;
    Output out = {};

    static void fields(auto& x, auto&& visit) {
        visit("query", x.query);
        visit("key", x.key);
        visit("value", x.value);
        visit("a", x.a);
        visit("b", x.b);
        visit("A_log", x.A_log);
        visit("dt_bias", x.dt_bias);
        visit("state_pool", x.state_pool);
        visit("state_indices", x.state_indices);
        visit("cu_seqlens", x.cu_seqlens);
        visit("num_accepted_tokens", x.num_accepted_tokens);
        visit("null_slot", x.null_slot);
        visit("step_states", x.step_states);
        visit("step_slots", x.step_slots);
        visit("scale", x.scale);
        visit("use_qk_l2norm", x.use_qk_l2norm);
        visit("out", x.out);
    }
};
// out
Tensor fused_decode(const FusedDecode& arguments);

struct GDN_HOLDS_TENSORS ChunkedForward {
    static constexpr const char* name = "chunked_forward";
    Given query, key, value, beta, gate;
    OptionalTensor state = {}, cu_seqlens = {};
    std::optional<double> scale = {};
    bool use_qk_l2norm = false;
    bool output_final_state = true;
    std::optional<ScalarType> state_dtype = {};
    int64_t checkpoint_every = 0;
    bool deterministic = false;  // no sequence is split into segments: docs/numerics.md
    Output out = {};
    OptionalTensor state_indices = {};  // `state` is a pool, updated in place: torch knows that as chunked_forward_pool

    static void fields(auto& x, auto&& visit) {
        visit("query", x.query);
        visit("key", x.key);
        visit("value", x.value);
        visit("beta", x.beta);
        visit("gate", x.gate);
        visit("state", x.state);
        visit("cu_seqlens", x.cu_seqlens);
        visit("scale", x.scale);
        visit("use_qk_l2norm", x.use_qk_l2norm);
        visit("output_final_state", x.output_final_state);
        visit("state_dtype", x.state_dtype);
        visit("checkpoint_every", x.checkpoint_every);
        visit("deterministic", x.deterministic);
        visit("out", x.out);
    }
};
struct GDN_HOLDS_TENSORS ChunkedResult {
    Tensor output;
    OptionalTensor final_state = {};  // the pool with state_indices; none with output_final_state = false
    OptionalTensor checkpoints = {};  // with checkpoint_every
};
ChunkedResult chunked_forward(const ChunkedForward& arguments);

struct GDN_HOLDS_TENSORS TransposeToMnMajor {
    static constexpr const char* name = "transpose_to_mn_major";
    Given input;
    int64_t alignment = 16;

    static void fields(auto& x, auto&& visit) {
        visit("input", x.input);
        visit("alignment", x.alignment);
    }
};
Tensor transpose_to_mn_major(const TransposeToMnMajor& arguments);

struct GDN_HOLDS_TENSORS ChunkLocalCumsum {
    static constexpr const char* name = "chunk_local_cumsum_bf16";
    Given input;
    Written output;
    bool head_first = false;
    OptionalTensor cu_seqlens = {};

    static void fields(auto& x, auto&& visit) {
        visit("input", x.input);
        visit("output", x.output);
        visit("head_first", x.head_first);
        visit("cu_seqlens", x.cu_seqlens);
    }
};
void chunk_local_cumsum_bf16(const ChunkLocalCumsum& arguments);

struct GDN_HOLDS_TENSORS ComputeUAndW {
    static constexpr const char* name = "bf16_gdn_compute_u_w";
    Given k, v;
    Written u, w;
    Given beta;
    OptionalTensor gate = {}, cu_seqlens = {};

    static void fields(auto& x, auto&& visit) {
        visit("k", x.k);
        visit("v", x.v);
        visit("u", x.u);
        visit("w", x.w);
        visit("beta", x.beta);
        visit("gate", x.gate);
        visit("cu_seqlens", x.cu_seqlens);
    }
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

    static void fields(auto& x, auto&& visit) {
        visit("k", x.k);
        visit("u", x.u);
        visit("w", x.w);
        visit("state", x.state);
        visit("final_state", x.final_state);
        visit("gate", x.gate);
        visit("is_initial_state", x.is_initial_state);
        visit("output_final_state", x.output_final_state);
        visit("cu_seqlens", x.cu_seqlens);
    }
};
void bf16_chunked_seq_state_update(const ChunkedSeqStateUpdate& arguments);

struct GDN_HOLDS_TENSORS ChunkedComputeO {
    static constexpr const char* name = "bf16_gdn_chunked_compute_O";
    Given q, state, k, u;
    Written o;
    OptionalTensor gate = {}, cu_seqlens = {};

    static void fields(auto& x, auto&& visit) {
        visit("q", x.q);
        visit("state", x.state);
        visit("k", x.k);
        visit("u", x.u);
        visit("o", x.o);
        visit("gate", x.gate);
        visit("cu_seqlens", x.cu_seqlens);
    }
};
void bf16_gdn_chunked_compute_O(const ChunkedComputeO& arguments);

}  // namespace gdn_cuda

#pragma GCC visibility pop
