// fused_decode: gates, l2 norm and recurrence, from and to slots of a state pool.
#include <gdn_cuda/gdn.hpp>

#include "../../operators/operator.hpp"
#include "prepared.hpp"

namespace gdn_cuda::gdn {
namespace {

Prepared prepare_decode(const FusedDecode& x) {
    const Checks check{x.name};
    const Sequences sequences = check_sequences(check, x.query, x.key, x.value, view_of(x.cu_seqlens), QueryHeads::any);
    Prepared prepared = prepare(check, sequences, x.out, x.scale, x.use_qk_l2norm);
    GdnCall& args = prepared.args;

    const GateTensors gates = check_raw_gates(check, prepared, x.a, x.b, x.gates, x.bound);
    const View pool(x.state_pool), written = view_of(x.write_indices), has_initial = view_of(x.has_initial_state);
    const View scales = view_of(x.state_scales), step_scales = view_of(x.step_scales);
    args.initial = check_coded_initial(check, prepared, "state_pool", pool, "state_scales", scales);
    check.distinct("state_pool", pool);
    check_has_initial(check, prepared, has_initial);
    const SlotTensors states = slot_tensors("state_pool", "state_indices", pool, x.state_indices, x.verify, x.steps);
    check_slots(check, states, sequences.batch());
    if (states.slots.defined()) set_slots(check, args, states);
    args.accepted = tagged(states.accepted);
    args.null_slot = check_null_slot(check, x.null_slot);

    const View& steps = states.steps;
    const View parents = view_of(x.parents);
    if (steps.defined()) {
        check.dtype("step_states", steps, {prepared.state_type});
        args.steps = check_states(check, prepared, "step_states", steps, 5, {prepared.state_type});
        check.distinct("step_states", steps);
        args.step_index = GdnCall::by_step_slot;
        set_step_slots(check, args, states);
        if (written.defined()) args.last = args.initial;
    } else if (states.by_token()) {
        args.steps = args.initial;
        args.step_index = GdnCall::by_slot_of_token;
        args.step_limit = args.slot_steps;
    } else if (x.update_state) {
        args.last = args.initial;
    }
    check_scales(check, prepared, args.steps, "step_states", steps, "step_scales", step_scales);
    check_update_state(check, x.update_state, states);
    if (written.defined()) {
        const bool one_goes_on = steps.defined() ? !x.parents : !states.by_token();  // not the leaves of a tree
        check_write_indices(check, prepared, written, states, x.update_state && one_goes_on);
    }
    if (parents.defined()) {
        check_parents(check, parents, states, sequences.batch());
        set_parents(args, parents);
    }
    check_apart(check, sequences, gates,
                {{"state_pool", pool},
                 {"state_scales", scales},
                 {"step_states", steps},
                 {"step_scales", step_scales},
                 {"out", prepared.output}},
                {{"state_indices", states.slots},
                 {kAcceptedTokens, states.accepted},
                 {"step_slots", states.step_slots},
                 {"has_initial_state", has_initial},
                 {"write_indices", written},
                 {"parents", parents}});
    return prepared;
}

void run_decode(const FusedDecode& x) {
    const Prepared prepared = prepare_decode(x);
    clear_without_sequences(prepared.sequences, x.out);
    run_by_token(prepared, x.name);
}

GDN_REGISTER(FusedDecode, prepare_decode, run_decode)

}  // namespace
}  // namespace gdn_cuda::gdn

namespace gdn_cuda {

Tensor fused_decode(const FusedDecode& given) {
    return into_out<FusedDecode, gdn::run_decode>(given, [](const auto& x) { return gdn::with_new_output(x); });
}

}  // namespace gdn_cuda
