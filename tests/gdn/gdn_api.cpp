// The C++ API of Gated Delta Net as torch operators of its own, so that Python can call it: torch.ops.gdn_cuda_api.
#include <torch/csrc/stable/library.h>

#include <gdn_cuda/gdn.hpp>
#include <gdn_cuda/layers.hpp>

namespace {

using gdn_cuda::OptionalTensor;
using gdn_cuda::Tensor;

std::tuple<Tensor, Tensor> fused_gdn_gating(const Tensor& A_log, const Tensor& dt_bias, const Tensor& a, const Tensor& b) {
    return gdn_cuda::fused_gdn_gating({.A_log = A_log, .dt_bias = dt_bias, .a = a, .b = b});
}

Tensor fused_decode(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& a, const Tensor& b,
                    const OptionalTensor& A_log, const OptionalTensor& dt_bias, const Tensor& state_pool,
                    const OptionalTensor& state_indices, const OptionalTensor& out, std::optional<double> lower_bound) {
    gdn_cuda::FusedDecode step{.query = query,
                               .key = key,
                               .value = value,
                               .a = a,
                               .b = b,
                               .gates = {.A_log = A_log, .dt_bias = dt_bias},
                               .state_pool = state_pool,
                               .state_indices = state_indices,
                               .bound = {.lower_bound = lower_bound}};
    if (out) step.out = *out;
    return gdn_cuda::fused_decode(step);
}

Tensor replay_decode(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& a, const Tensor& b,
                     const Tensor& A_log, const Tensor& dt_bias, const Tensor& state_pool, const Tensor& keys,
                     const Tensor& updates, const Tensor& decays, const Tensor& banks, const Tensor& accepted) {
    return gdn_cuda::replay_decode({.query = query,
                                    .key = key,
                                    .value = value,
                                    .a = a,
                                    .b = b,
                                    .gates = {.A_log = A_log, .dt_bias = dt_bias},
                                    .state_pool = state_pool,
                                    .keys = keys,
                                    .updates = updates,
                                    .decays = decays,
                                    .banks = banks,
                                    .verify = {.num_accepted_tokens = accepted}});
}

// The projections' parts are separate arguments, and there are no slots.
Tensor gdn_decode_layer(const Tensor& qkvz, const Tensor& ba, const Tensor& z, const Tensor& a, const Tensor& conv_weight,
                        const Tensor& A_log, const Tensor& dt_bias, const Tensor& norm_weight, const Tensor& conv_pool,
                        const Tensor& state_pool, int64_t heads_k, int64_t heads_v, int64_t dk, int64_t dv) {
    return gdn_cuda::gdn_decode_layer({.qkvz = qkvz,
                                       .ba = ba,
                                       .conv_weight = conv_weight,
                                       .gates = {.A_log = A_log, .dt_bias = dt_bias},
                                       .norm_weight = norm_weight,
                                       .conv_pool = conv_pool,
                                       .state_pool = state_pool,
                                       .z = z,
                                       .a = a,
                                       .heads_k = heads_k,
                                       .heads_v = heads_v,
                                       .dk = dk,
                                       .dv = dv,
                                       .layout = gdn_cuda::LayerLayout::split});
}

std::tuple<Tensor, Tensor> recurrent_forward(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& beta,
                                             const Tensor& gate, bool every_state) {
    using gdn_cuda::InferenceMode;
    return gdn_cuda::recurrent_forward({.query = query,
                                        .key = key,
                                        .value = value,
                                        .beta = beta,
                                        .gate = gate,
                                        .inference_mode = every_state ? InferenceMode::spec_verify : InferenceMode::prefill,
                                        .is_qk_norm = true,
                                        .scale = 0.5});
}

// (output, final state, checkpoints); a tensor that the call does not return is empty.
std::tuple<Tensor, Tensor, Tensor> chunked_forward(const Tensor& query, const Tensor& key, const Tensor& value,
                                                   const Tensor& beta, const Tensor& gate, const OptionalTensor& state,
                                                   const OptionalTensor& state_indices, int64_t checkpoint_every, bool last) {
    const auto result = gdn_cuda::chunked_forward({.query = query,
                                                   .key = key,
                                                   .value = value,
                                                   .beta = beta,
                                                   .gate = gate,
                                                   .state = state,
                                                   .output_final_state = last,
                                                   .checkpoint_every = checkpoint_every,
                                                   .state_indices = state_indices});
    const Tensor none;
    return {result.output, result.final_state.value_or(none), result.checkpoints.value_or(none)};
}

// With raw gates: options that several operators share, in a struct of their own.
std::tuple<Tensor, Tensor, Tensor> raw_gates(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& beta,
                                             const Tensor& gate, const Tensor& A_log, const Tensor& dt_bias, const Tensor& pool,
                                             const Tensor& slots) {
    const gdn_cuda::GateOptions gates{
        .A_log = A_log, .dt_bias = dt_bias, .beta_is_logit = true, .allow_negative_eigenvalues = true};
    const auto by_token =
        gdn_cuda::recurrent_forward({.query = query, .key = key, .value = value, .beta = beta, .gate = gate, .gates = gates});
    const auto from_pool = gdn_cuda::chunked_forward({.query = query,
                                                      .key = key,
                                                      .value = value,
                                                      .beta = beta,
                                                      .gate = gate,
                                                      .state = pool,
                                                      .gates = gates,
                                                      .state_indices = slots});
    return {std::get<0>(by_token), from_pool.output,
            gdn_cuda::chunked_summary({.key = key, .value = value, .beta = beta, .gate = gate, .gates = gates})};
}

// With a gate for every channel of the key, by token and by chunk, and the summary; and the gate's logarithms.
std::tuple<Tensor, Tensor, Tensor, Tensor> gates_of_channels(const Tensor& query, const Tensor& key, const Tensor& value,
                                                             const Tensor& beta, const Tensor& gate, const Tensor& A_log,
                                                             const Tensor& dt_bias, double lower_bound) {
    const auto by_token = gdn_cuda::recurrent_forward({.query = query,
                                                       .key = key,
                                                       .value = value,
                                                       .beta = beta,
                                                       .gate = gate,
                                                       .gates = {.A_log = A_log, .dt_bias = dt_bias},
                                                       .bound = {.lower_bound = lower_bound}});
    const auto by_chunk = gdn_cuda::chunked_forward({.query = query,
                                                     .key = key,
                                                     .value = value,
                                                     .beta = beta,
                                                     .gate = gate,
                                                     .gates = {.A_log = A_log, .dt_bias = dt_bias},
                                                     .bound = {.lower_bound = lower_bound}});
    const Tensor summary = gdn_cuda::chunked_summary({.key = key,
                                                      .value = value,
                                                      .beta = beta,
                                                      .gate = gate,
                                                      .gates = {.A_log = A_log, .dt_bias = dt_bias},
                                                      .bound = {.lower_bound = lower_bound}});
    return {std::get<0>(by_token), by_chunk.output, summary,
            gdn_cuda::fused_kda_gating({.a = gate, .A_log = A_log, .dt_bias = dt_bias, .bound = {.lower_bound = lower_bound}})};
}

Tensor chunked_summary(const Tensor& key, const Tensor& value, const Tensor& beta, const Tensor& gate,
                       const OptionalTensor& cu_seqlens) {
    return gdn_cuda::chunked_summary({.key = key, .value = value, .beta = beta, .gate = gate, .cu_seqlens = cu_seqlens});
}

Tensor fold_states(const Tensor& state, const Tensor& additions, const Tensor& transitions, bool reverse) {
    return gdn_cuda::fold_states({.state = state, .additions = additions, .transitions = transitions, .reverse = reverse});
}

// A call without the required state_pool.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
Tensor decode_without_pool(const Tensor& x) {
    return gdn_cuda::fused_decode({.query = x, .key = x, .value = x, .a = x, .b = x, .gates = {.A_log = x, .dt_bias = x}});
}
#pragma GCC diagnostic pop

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(gdn_cuda_api, m) {
    m.def("fused_gdn_gating(Tensor A_log, Tensor dt_bias, Tensor a, Tensor b) -> (Tensor, Tensor)");
    m.def(
        "fused_decode(Tensor query, Tensor key, Tensor value, Tensor a, Tensor b, Tensor? A_log, Tensor? dt_bias, "
        "Tensor state_pool, Tensor? state_indices=None, Tensor? out=None, float? lower_bound=None) -> Tensor");
    m.def(
        "gdn_decode_layer(Tensor qkvz, Tensor ba, Tensor z, Tensor a, Tensor conv_weight, Tensor A_log, Tensor dt_bias, "
        "Tensor norm_weight, Tensor(a!) conv_pool, Tensor(b!) state_pool, int heads_k, int heads_v, int dk, int dv) -> Tensor");
    m.def(
        "replay_decode(Tensor query, Tensor key, Tensor value, Tensor a, Tensor b, Tensor A_log, Tensor dt_bias, "
        "Tensor state_pool, Tensor keys, Tensor updates, Tensor decays, Tensor banks, Tensor accepted) -> Tensor");
    m.def(
        "recurrent_forward(Tensor query, Tensor key, Tensor value, Tensor beta, Tensor gate, bool every_state) "
        "-> (Tensor, Tensor)");
    m.def(
        "chunked_forward(Tensor query, Tensor key, Tensor value, Tensor beta, Tensor gate, Tensor? state=None, "
        "Tensor? state_indices=None, int checkpoint_every=0, bool last=True) -> (Tensor, Tensor, Tensor)");
    m.def("chunked_summary(Tensor key, Tensor value, Tensor beta, Tensor gate, Tensor? cu_seqlens=None) -> Tensor");
    m.def("fold_states(Tensor state, Tensor additions, Tensor transitions, bool reverse) -> Tensor");
    m.def(
        "raw_gates(Tensor query, Tensor key, Tensor value, Tensor beta, Tensor gate, Tensor A_log, Tensor dt_bias, "
        "Tensor(a!) pool, Tensor slots) -> (Tensor, Tensor, Tensor)");
    m.def(
        "gates_of_channels(Tensor query, Tensor key, Tensor value, Tensor beta, Tensor gate, Tensor A_log, Tensor dt_bias, "
        "float lower_bound) -> (Tensor, Tensor, Tensor, Tensor)");
    m.def("decode_without_pool(Tensor x) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(gdn_cuda_api, CompositeExplicitAutograd, m) {
    m.impl("fused_gdn_gating", TORCH_BOX(&fused_gdn_gating));
    m.impl("fused_decode", TORCH_BOX(&fused_decode));
    m.impl("gdn_decode_layer", TORCH_BOX(&gdn_decode_layer));
    m.impl("replay_decode", TORCH_BOX(&replay_decode));
    m.impl("recurrent_forward", TORCH_BOX(&recurrent_forward));
    m.impl("chunked_forward", TORCH_BOX(&chunked_forward));
    m.impl("chunked_summary", TORCH_BOX(&chunked_summary));
    m.impl("fold_states", TORCH_BOX(&fold_states));
    m.impl("raw_gates", TORCH_BOX(&raw_gates));
    m.impl("gates_of_channels", TORCH_BOX(&gates_of_channels));
    m.impl("decode_without_pool", TORCH_BOX(&decode_without_pool));
}
