// recurrent_forward: the recurrence with the last state, or the state after every token.
#include <torch/csrc/stable/library.h>

#include "gdn.hpp"
#include "gdn_prepared.hpp"
#include "register.hpp"

namespace gdn_cuda::gdn {
namespace {

constexpr int64_t kPrefill = 0, kSpecVerify = 2;

Prepared prepare_recurrent(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& state,
                           const Tensor& beta, const Tensor& gate, const OptionalTensor& cu_seqlens,
                           const OptionalTensor& num_accepted_tokens, int64_t inference_mode, bool is_qk_norm,
                           std::optional<double> scale, const Tensor& out) {
    const Checks check{"recurrent_forward"};
    const Sequences sequences = check_sequences(check, query, key, value, view_of(cu_seqlens));
    Prepared prepared = prepare(check, sequences, out, scale, is_qk_norm);
    RecurrentArgs& args = prepared.args;
    GDN_REQUIRE(check, inference_mode >= kPrefill && inference_mode <= kSpecVerify, "inference_mode",
                "InferenceMode PREFILL 0, DECODE 1 or SPEC_VERIFY 2", fmt::format("{}", inference_mode));
    const View beta_view(beta), gate_view(gate);
    check_gates(check, beta_view, gate_view, sequences, args.beta, args.gate);

    const View initial = view_of(state), accepted = view_of(num_accepted_tokens);
    const bool verify = inference_mode == kSpecVerify;
    GDN_REQUIRE(check, verify || !accepted.defined(), "num_accepted_tokens", "None, unless inference_mode is SPEC_VERIFY",
                "a tensor");
    if (initial.defined()) {
        prepared.state_type = check.dtype("state", initial, {DType::f32, DType::bf16});
        const bool steps = verify && initial.rank == 5;
        args.initial = check_states(check, prepared, "state", initial, steps ? 5 : 4);
        GDN_REQUIRE(check, initial.size(0) == sequences.count, "state",
                    fmt::format("a state for each of {} sequences", sequences.count), shape_text(initial));
        GDN_REQUIRE(check, !steps || initial.size(1) >= 1, "state", "at least one step", shape_text(initial));
        args.slot_steps = steps ? check.count("state", "steps", initial.size(1)) : 1;
    }
    if (accepted.defined()) {
        GDN_REQUIRE(check, initial.defined(), "num_accepted_tokens", "a state to choose from", "state None");
        check_per_sequence(check, "num_accepted_tokens", accepted, sequences);
        args.accepted = tagged(accepted);
    }
    check.apart({{"out", prepared.output}}, {{"query", sequences.query},
                                             {"key", sequences.key},
                                             {"value", sequences.value},
                                             {"beta", beta_view},
                                             {"gate", gate_view},
                                             {"state", initial},
                                             {"cu_seqlens", sequences.cu_seqlens},
                                             {"num_accepted_tokens", accepted}});
    return prepared;
}

}  // namespace

Tensor recurrent_forward(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& state,
                         const Tensor& beta, const Tensor& gate, const OptionalTensor& cu_seqlens,
                         const OptionalTensor& num_accepted_tokens, int64_t inference_mode, bool is_qk_norm,
                         std::optional<double> scale, const Tensor& out) {
    Prepared prepared = prepare_recurrent(query, key, value, state, beta, gate, cu_seqlens, num_accepted_tokens, inference_mode,
                                          is_qk_norm, scale, out);
    const Sequences& sequences = prepared.sequences;
    RecurrentArgs& args = prepared.args;
    if (inference_mode == kSpecVerify) {
        const Tensor states = sequences.packed()
                                  ? new_states(out, {sequences.tokens}, sequences, prepared.state_type)
                                  : new_states(out, {sequences.count, sequences.tokens}, sequences, prepared.state_type);
        args.step_index = sequences.packed() ? RecurrentArgs::packed : RecurrentArgs::by_sequence;
        args.steps = {states.data_ptr(), sequences.packed() ? 0 : sequences.tokens * sequences.state_numel(),
                      sequences.state_numel()};
        run_by_token(prepared, "recurrent_forward");
        return states;
    }
    const Tensor states = new_states(out, {sequences.count}, sequences, prepared.state_type);
    args.last = {states.data_ptr(), sequences.state_numel(), 0};
    run_by_token(prepared, "recurrent_forward");
    return states;
}

STABLE_TORCH_LIBRARY_FRAGMENT(gdn_cuda, m) {
    define_checked(m, "recurrent_forward",
                   "Tensor query, Tensor key, Tensor value, Tensor? state, Tensor beta, Tensor gate, Tensor? cu_seqlens, "
                   "Tensor? num_accepted_tokens, int inference_mode, bool is_qk_norm, float? scale, Tensor(a!) out",
                   "Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(gdn_cuda, CUDA, m) {
    m.impl("recurrent_forward", TORCH_BOX(&recurrent_forward));
}

STABLE_TORCH_LIBRARY_IMPL(gdn_cuda, CPU, m) {
    m.impl("validate_recurrent_forward", TORCH_BOX(&OnlyCheck<prepare_recurrent>::run));
}

}  // namespace gdn_cuda::gdn
