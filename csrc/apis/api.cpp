// The public C++ API: what belongs to no family, and Gated Delta Net. Outputs allocated, CUDA tensors straight to the launch,
// others through torch's dispatcher to the implementation that Python registers.
#include <torch/csrc/stable/ops.h>

#include <gdn_cuda/api.hpp>

#include "../jit/toolchain.hpp"
#include "../jit_kernels/registry.hpp"
#include "dispatch.hpp"
#include "gdn.hpp"

namespace gdn_cuda {
namespace {

Tensor output_like(const Tensor& value, const OptionalTensor& out) {
    return out ? *out : torch::stable::new_empty(value, value.sizes());
}

}  // namespace

void init(const std::filesystem::path& library_root, const std::filesystem::path& cuda_home) {
    jit::init(library_root, cuda_home);
}

int warmup(const std::string& kernel, int device) {
    int loaded = 0;
    const int capability = jit::device_traits(device).capability;
    for (const RegisteredKernel& each : registry()) {
        const bool runs = each.min_capability <= capability && capability <= each.max_capability;
        if (kernel.empty() ? !runs : kernel != each.family + "/" + each.name) continue;
        for (const RegisteredConfiguration& configuration : each.configurations) {
            configuration.load(device);
            ++loaded;
        }
    }
    if (loaded == 0)
        throw std::invalid_argument("warmup: kernel: expected \"family/kernel\" of the registry, got \"" + kernel + "\"");
    return loaded;
}

std::tuple<Tensor, Tensor> fused_gdn_gating(const Tensor& A_log, const Tensor& dt_bias, const Tensor& a, const Tensor& b) {
    if (a.is_cuda()) return gdn::fused_gdn_gating(A_log, dt_bias, a, b);
    const auto results = dispatch<2>("gdn_cuda::fused_gdn_gating", A_log, dt_bias, a, b);
    return {tensor_of(results[0]), tensor_of(results[1])};
}

std::tuple<Tensor, Tensor> recurrent_forward(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& beta,
                                             const Tensor& gate, const RecurrentOptions& options) {
    const Tensor out = output_like(value, options.out);
    const auto mode = static_cast<int64_t>(options.inference_mode);
    if (query.is_cuda())
        return {out, gdn::recurrent_forward(query, key, value, options.state, beta, gate, options.cu_seqlens,
                                            options.num_accepted_tokens, mode, options.is_qk_norm, options.scale, out)};
    return {out, tensor_of(dispatch<1>("gdn_cuda::recurrent_forward", query, key, value, options.state, beta, gate,
                                       options.cu_seqlens, options.num_accepted_tokens, mode, options.is_qk_norm, options.scale,
                                       out)[0])};
}

Tensor fused_decode(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& a, const Tensor& b,
                    const Tensor& A_log, const Tensor& dt_bias, const Tensor& state_pool, const DecodeOptions& options) {
    const Tensor out = output_like(value, options.out);
    if (query.is_cuda()) {
        gdn::fused_decode(query, key, value, a, b, A_log, dt_bias, state_pool, options.state_indices, options.cu_seqlens,
                          options.num_accepted_tokens, options.null_slot, options.step_states, options.step_slots,
                          options.scale, options.use_qk_l2norm, out);
    } else {
        dispatch<0>("gdn_cuda::fused_decode", query, key, value, a, b, A_log, dt_bias, state_pool, options.state_indices,
                    options.cu_seqlens, options.num_accepted_tokens, options.null_slot, options.step_states, options.step_slots,
                    options.scale, options.use_qk_l2norm, out);
    }
    return out;
}

ChunkedResult chunked_forward(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& beta,
                              const Tensor& gate, const ChunkedOptions& options) {
    ChunkedResult result{.output = output_like(value, options.out), .final_state = {}, .checkpoints = {}};
    Tensor final_state, checkpoints;
    if (options.state_indices) {
        if (!options.state) fail("chunked_forward", "state", "a pool (slots, Hv, dv, dk) with state_indices", "none");
        final_state = *options.state;
        checkpoints =
            query.is_cuda()
                ? gdn::chunked_forward_pool(query, key, value, beta, gate, *options.state, *options.state_indices,
                                            options.cu_seqlens, options.chunk_indices, options.cu_chunks, options.scale,
                                            options.use_qk_l2norm, options.checkpoint_every, options.deterministic,
                                            result.output)
                : tensor_of(dispatch<1>("gdn_cuda::chunked_forward_pool", query, key, value, beta, gate, *options.state,
                                        *options.state_indices, options.cu_seqlens, options.chunk_indices, options.cu_chunks,
                                        options.scale, options.use_qk_l2norm, options.checkpoint_every, options.deterministic,
                                        result.output)[0]);
    } else if (query.is_cuda()) {
        std::tie(final_state, checkpoints) =
            gdn::chunked_forward(query, key, value, beta, gate, options.state, options.cu_seqlens, options.chunk_indices,
                                 options.cu_chunks, options.scale, options.use_qk_l2norm, options.output_final_state,
                                 options.state_dtype, options.checkpoint_every, options.deterministic, result.output);
    } else {
        const auto results = dispatch<2>("gdn_cuda::chunked_forward", query, key, value, beta, gate, options.state,
                                         options.cu_seqlens, options.chunk_indices, options.cu_chunks, options.scale,
                                         options.use_qk_l2norm, options.output_final_state, options.state_dtype,
                                         options.checkpoint_every, options.deterministic, result.output);
        final_state = tensor_of(results[0]);
        checkpoints = tensor_of(results[1]);
    }
    if (options.output_final_state) result.final_state = final_state;
    if (options.checkpoint_every != 0) result.checkpoints = checkpoints;
    return result;
}

Tensor transpose_to_mn_major(const Tensor& input, int64_t alignment) {
    if (input.is_cuda()) return gdn::transpose_to_mn_major(input, alignment);
    return tensor_of(dispatch<1>("gdn_cuda::transpose_to_mn_major", input, alignment)[0]);
}

void chunk_local_cumsum_bf16(const Tensor& input, const Tensor& output, int64_t batch_size, int64_t seq_len, int64_t num_heads,
                             bool head_first, const OptionalTensor& cu_seqlens, const OptionalTensor& chunk_indices) {
    if (input.is_cuda())
        return gdn::chunk_local_cumsum_bf16(input, output, batch_size, seq_len, num_heads, head_first, cu_seqlens,
                                            chunk_indices);
    dispatch<0>("gdn_cuda::chunk_local_cumsum_bf16", input, output, batch_size, seq_len, num_heads, head_first, cu_seqlens,
                chunk_indices);
}

void bf16_gdn_compute_u_w(const Tensor& k, const Tensor& v, const Tensor& u, const Tensor& w, const Tensor& beta,
                          const OptionalTensor& gate, const std::string& compiled_dims, const OptionalTensor& cu_seqlens,
                          const OptionalTensor& chunk_indices) {
    if (k.is_cuda()) return gdn::bf16_gdn_compute_u_w(k, v, u, w, beta, gate, compiled_dims, cu_seqlens, chunk_indices);
    dispatch<0>("gdn_cuda::bf16_gdn_compute_u_w", k, v, u, w, beta, gate, compiled_dims, cu_seqlens, chunk_indices);
}

void bf16_chunked_seq_state_update(const Tensor& k, const Tensor& u, const Tensor& w, const Tensor& state,
                                   const Tensor& final_state, const OptionalTensor& gate, bool is_initial_state,
                                   bool output_final_state, const std::string& compiled_dims, const OptionalTensor& cu_seqlens,
                                   int64_t chunk_size) {
    if (k.is_cuda())
        return gdn::bf16_chunked_seq_state_update(k, u, w, state, final_state, gate, is_initial_state, output_final_state,
                                                  compiled_dims, cu_seqlens, chunk_size);
    dispatch<0>("gdn_cuda::bf16_chunked_seq_state_update", k, u, w, state, final_state, gate, is_initial_state,
                output_final_state, compiled_dims, cu_seqlens, chunk_size);
}

void bf16_gdn_chunked_compute_O(const Tensor& q, const Tensor& state, const Tensor& k, const Tensor& u, const Tensor& o,
                                const OptionalTensor& gate, const std::string& compiled_dims, const OptionalTensor& cu_seqlens,
                                const OptionalTensor& chunk_indices, const OptionalTensor& cu_chunks, int64_t chunk_size) {
    if (q.is_cuda())
        return gdn::bf16_gdn_chunked_compute_O(q, state, k, u, o, gate, compiled_dims, cu_seqlens, chunk_indices, cu_chunks,
                                               chunk_size);
    dispatch<0>("gdn_cuda::bf16_gdn_chunked_compute_O", q, state, k, u, o, gate, compiled_dims, cu_seqlens, chunk_indices,
                cu_chunks, chunk_size);
}

}  // namespace gdn_cuda
