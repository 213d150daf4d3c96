// The GDN operators on CUDA tensors: validation and launch. include/gdn_cuda/api.hpp is their public face.
#pragma once

#include <string>
#include <tuple>

#include "tensor.hpp"

namespace gdn_cuda::gdn {

std::tuple<Tensor, Tensor> fused_gdn_gating(const Tensor& A_log, const Tensor& dt_bias, const Tensor& a, const Tensor& b);

Tensor recurrent_forward(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& state,
                         const Tensor& beta, const Tensor& gate, const OptionalTensor& cu_seqlens,
                         const OptionalTensor& num_accepted_tokens, int64_t inference_mode, bool is_qk_norm,
                         std::optional<double> scale, const Tensor& out);

void fused_decode(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& a, const Tensor& b,
                  const Tensor& A_log, const Tensor& dt_bias, const Tensor& state_pool, const OptionalTensor& state_indices,
                  const OptionalTensor& cu_seqlens, const OptionalTensor& num_accepted_tokens, std::optional<int64_t> null_slot,
                  const OptionalTensor& step_states, const OptionalTensor& step_slots, std::optional<double> scale,
                  bool use_qk_l2norm, const Tensor& out);

// (final state, or empty; checkpoints, or empty)
std::tuple<Tensor, Tensor> chunked_forward(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& beta,
                                           const Tensor& gate, const OptionalTensor& state, const OptionalTensor& cu_seqlens,
                                           const OptionalTensor& chunk_indices, const OptionalTensor& cu_chunks,
                                           std::optional<double> scale, bool use_qk_l2norm, bool output_final_state,
                                           std::optional<torch::headeronly::ScalarType> state_dtype, int64_t checkpoint_every,
                                           bool deterministic, const Tensor& out);

// The same from and to slots of a state pool; returns the checkpoints.
Tensor chunked_forward_pool(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& beta, const Tensor& gate,
                            const Tensor& state_pool, const Tensor& state_indices, const OptionalTensor& cu_seqlens,
                            const OptionalTensor& chunk_indices, const OptionalTensor& cu_chunks, std::optional<double> scale,
                            bool use_qk_l2norm, int64_t checkpoint_every, bool deterministic, const Tensor& out);

Tensor transpose_to_mn_major(const Tensor& input, int64_t alignment);

void chunk_local_cumsum_bf16(const Tensor& input, const Tensor& output, int64_t batch_size, int64_t seq_len, int64_t num_heads,
                             bool head_first, const OptionalTensor& cu_seqlens, const OptionalTensor& chunk_indices);

void bf16_gdn_compute_u_w(const Tensor& k, const Tensor& v, const Tensor& u, const Tensor& w, const Tensor& beta,
                          const OptionalTensor& gate, const std::string& compiled_dims, const OptionalTensor& cu_seqlens,
                          const OptionalTensor& chunk_indices);

void bf16_chunked_seq_state_update(const Tensor& k, const Tensor& u, const Tensor& w, const Tensor& state,
                                   const Tensor& final_state, const OptionalTensor& gate, bool is_initial_state,
                                   bool output_final_state, const std::string& compiled_dims, const OptionalTensor& cu_seqlens,
                                   int64_t chunk_size);

void bf16_gdn_chunked_compute_O(const Tensor& q, const Tensor& state, const Tensor& k, const Tensor& u, const Tensor& o,
                                const OptionalTensor& gate, const std::string& compiled_dims, const OptionalTensor& cu_seqlens,
                                const OptionalTensor& chunk_indices, const OptionalTensor& cu_chunks, int64_t chunk_size);

}  // namespace gdn_cuda::gdn
