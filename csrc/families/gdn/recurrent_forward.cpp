// recurrent_forward: the recurrence with the final state, or the state after every token.
#include <gdn_cuda/gdn.hpp>

#include "../../operators/operator.hpp"
#include "move_states.hpp"
#include "prepared.hpp"

namespace gdn_cuda::gdn {
namespace {

Prepared prepare_recurrent(const RecurrentForward& x) {
    const Checks check{x.name};
    const Sequences sequences = check_sequences(check, x.query, x.key, x.value, view_of(x.cu_seqlens), QueryHeads::any);
    Prepared prepared = prepare(check, sequences, x.out, x.scale, x.is_qk_norm);
    GdnCall& args = prepared.args;
    GDN_REQUIRE(check, x.inference_mode >= InferenceMode::prefill && x.inference_mode <= InferenceMode::spec_verify,
                "inference_mode", "PREFILL (0), DECODE (1) or SPEC_VERIFY (2)",
                fmt::format("{}", static_cast<int64_t>(x.inference_mode)));
    const GateTensors gates = check_gates(check, prepared, x.beta, x.gate, x.gates, x.bound);

    const View initial = view_of(x.state), accepted = accepted_of(x.verify), scales = view_of(x.state_scales);
    const bool verify = x.inference_mode == InferenceMode::spec_verify;
    GDN_REQUIRE(check, verify || !accepted.defined(), kAcceptedTokens, "None, unless inference_mode is SPEC_VERIFY",
                "a tensor");
    if (initial.defined()) {
        const bool steps = verify && initial.rank == 5;
        args.initial = check_coded_initial(check, prepared, "state", initial, "state_scales", scales, steps ? 5 : 4);
        GDN_REQUIRE(check, initial.size(0) == sequences.count, "state",
                    fmt::format("a state for each of {} sequences", sequences.count), shape_text(initial));
        GDN_REQUIRE(check, !steps || initial.size(1) >= 1, "state", "at least one step", shape_text(initial));
        args.slot_steps = steps ? check.count("state", "steps", initial.size(1)) : 1;
    } else {
        check_state_scales(check, "state", initial, "state_scales", scales);
    }
    GDN_REQUIRE(check, !accepted.defined() || initial.defined(), kAcceptedTokens, "a state to choose from", "state None");
    args.accepted = check_accepted(check, accepted, sequences.batch());
    const View has_initial = view_of(x.has_initial_state), last = view_of(x.final_state);
    const View last_scales = view_of(x.final_scales);
    check_has_initial(check, prepared, has_initial);
    if (last.defined()) {
        GDN_REQUIRE(check, !verify, "final_state", "None with SPEC_VERIFY", "a tensor");
        args.last = check_final_state(check, prepared, last, {DType::f32, DType::bf16, DType::f16, DType::i8});
        check_scales(check, prepared, args.last, "final_state", last, "final_scales", last_scales);
    } else {
        check_state_scales(check, "final_state", last, "final_scales", last_scales);
    }
    check_apart(
        check, sequences, gates, {{"out", prepared.output}, {"final_state", last}, {"final_scales", last_scales}},
        {{"state", initial}, {"state_scales", scales}, {"has_initial_state", has_initial}, {kAcceptedTokens, accepted}});
    return prepared;
}

// Where states are int8 and no kernel reads and writes their codes, they pass through fp32 ones.
class WideStates {
  public:
    WideStates(Prepared& prepared, const RecurrentForward& x)
        : call_(prepared.args), target_(target_of(x.name, prepared.sequences.query)) {
        GdnCall& args = prepared.args;
        const bool read = args.initial.scales != nullptr, written = args.last.scales != nullptr;
        const bool by_kernel = read && written && prepared.sequences.plain() && prepared.plain_states;
        if (by_kernel || !(read || written)) return;
        const Sequences& sequences = prepared.sequences;
        states_ = new_states(x.out, {sequences.count}, sequences, DType::f32);
        dense_ = contiguous_states(memory_of(*states_), sequences, DType::f32);
        if (args.initial.data != nullptr) {
            slots_ = new_tensor(x.out, {sequences.count}, ScalarType::Long);
            const MoveStatesArgs gather{
                .call = call_, .to = dense_, .rows = sequences.count, .dense_slots = static_cast<i64*>(memory_of(*slots_))};
            MoveStates::run(StatesMove::gather, gather, target_);
            args.initial = dense_;
            args.has_initial = nullptr;
            args.accepted = {};
            args.slot_steps = 1;
        }
        if (written) args.last = dense_;
        prepared.plain_states = written || args.last.data == nullptr;
        prepared.state_type = DType::f32;
        prepared.aligned = sequences.query.aligned16() && sequences.key.aligned16();
    }
    void store() const {
        if (!states_ || call_.last.scales == nullptr) return;
        MoveStates::run(StatesMove::scatter, {.call = call_, .from = dense_, .rows = call_.sequences}, target_);
    }

  private:
    GdnCall call_;
    Target target_;
    OptionalTensor states_ = {}, slots_ = {};
    RecurrentStates dense_{};
};

Tensor run_recurrent(const RecurrentForward& x) {
    Prepared prepared = prepare_recurrent(x);
    const Sequences& sequences = prepared.sequences;
    GdnCall& args = prepared.args;
    const DeviceScope scope(sequences.query.device_index);
    clear_without_sequences(sequences, x.out);
    const DType type = prepared.state_type == DType::i8 ? DType::f32 : prepared.state_type;
    const WideStates wide(prepared, x);
    if (x.inference_mode == InferenceMode::spec_verify) {
        const Tensor states = sequences.packed() ? new_states(x.out, {sequences.tokens}, sequences, type)
                                                 : new_states(x.out, {sequences.count, sequences.tokens}, sequences, type);
        args.step_index = sequences.packed() ? GdnCall::packed : GdnCall::by_sequence;
        args.steps = contiguous_states(memory_of(states), sequences, type, sequences.packed() ? 0 : sequences.tokens);
        run_by_token(prepared, x.name);
        return states;
    }
    const Tensor states = new_states(x.out, {x.final_state ? 0 : sequences.count}, sequences, type);
    if (!x.final_state) args.last = contiguous_states(memory_of(states), sequences, type);
    run_by_token(prepared, x.name);
    wide.store();
    return states;
}

GDN_REGISTER(RecurrentForward, prepare_recurrent, run_recurrent)

}  // namespace
}  // namespace gdn_cuda::gdn

namespace gdn_cuda {

std::tuple<Tensor, Tensor> recurrent_forward(const RecurrentForward& x) {
    require_given(x.name, x);
    if (!x.out) return recurrent_forward(gdn::with_new_output(x));
    const Tensor new_state = call<RecurrentForward, gdn::run_recurrent>(x);
    return {x.out, x.final_state ? *x.final_state : new_state};
}

}  // namespace gdn_cuda
