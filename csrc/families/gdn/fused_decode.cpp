// fused_decode: gates, l2 norm and recurrence, from and to slots of a state pool.
#include <gdn_cuda/gdn.hpp>

#include "../../operators/operator.hpp"
#include "prepared.hpp"

namespace gdn_cuda::gdn {
namespace {

// A parent for each token; branches start from step states.
void check_parents(const Checks& check, const View& parents, bool keeps_steps, const Sequences& sequences) {
    GDN_REQUIRE(check, keeps_steps, "parents", "None without step_states", "a tensor");
    check_indices(check, "parents", parents, sequences.batch());
    const int64_t tokens = sequences.packed() ? 0 : sequences.tokens;
    GDN_REQUIRE(check,
                parents.rank == 2 && parents.size(0) == sequences.count && parents.size(1) >= tokens &&
                    parents.size(1) <= kMostTreeTokens,
                "parents",
                fmt::format("({}, T), a parent for each of {} tokens, T at most {}", sequences.count, tokens, kMostTreeTokens),
                shape_text(parents));
}

Prepared prepare_decode(const FusedDecode& x) {
    const Checks check{x.name};
    const Sequences sequences = check_sequences(check, x.query, x.key, x.value, view_of(x.cu_seqlens), QueryHeads::any);
    Prepared prepared = prepare(check, sequences, x.out, x.scale, x.use_qk_l2norm);
    GdnCall& args = prepared.args;

    const View a(x.a), b(x.b), rates(x.A_log), bias(x.dt_bias);
    args.gate = check_scalars(check, "a", a, sequences);
    args.beta = check_scalars(check, "b", b, sequences);
    args.A_log = check_per_head(check, "A_log", rates, sequences);
    args.dt_bias = check_per_head(check, "dt_bias", bias, sequences);

    const View pool(x.state_pool), slots = view_of(x.state_indices), accepted = view_of(x.num_accepted_tokens);
    const View steps = view_of(x.step_states), rows = view_of(x.step_slots);
    const View written = view_of(x.write_indices), has_initial = view_of(x.has_initial_state);
    args.forms = {.gate = GateForms::raw, .beta_is_logit = true, .beta_factor = x.allow_negative_eigenvalues ? 2.f : 1.f};
    args.initial = check_initial(check, prepared, "state_pool", pool, 4);
    check.distinct("state_pool", pool);
    check_has_initial(check, prepared, has_initial);
    const SlotTensors states{"state_pool", "state_indices", pool, slots, accepted, steps, rows};
    check_slots(check, states, sequences.batch());
    if (slots.defined()) set_slots(check, args, states);
    args.accepted = tagged(accepted);
    if (x.null_slot) {
        GDN_REQUIRE(check, *x.null_slot >= 0, "null_slot", "a slot number, or None", fmt::format("{}", *x.null_slot));
        args.null_slot = *x.null_slot;
    }

    const View parents = view_of(x.parents);
    if (steps.defined()) {
        check.dtype("step_states", steps, {prepared.state_type});
        args.steps = check_states(check, prepared, "step_states", steps, 5);
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
    GDN_REQUIRE(check, x.update_state || !(states.by_token() && !steps.defined()), "update_state",
                "True with a slot for each token", "False");
    if (written.defined()) {
        const bool one_goes_on = steps.defined() ? !x.parents : !states.by_token();  // not the leaves of a tree
        check_write_indices(check, prepared, written, slots, x.update_state && one_goes_on);
    }
    if (parents.defined()) {
        check_parents(check, parents, steps.defined(), sequences);
        args.parents = tagged(parents);
        args.parents_sequence = parents.stride(0);
        args.parents_token = parents.stride(1);
        args.parents_count = static_cast<int>(parents.size(1));
    }
    check.apart({{"state_pool", pool}, {"step_states", steps}, {"out", prepared.output}}, {{"query", sequences.query},
                                                                                           {"key", sequences.key},
                                                                                           {"value", sequences.value},
                                                                                           {"a", a},
                                                                                           {"b", b},
                                                                                           {"A_log", rates},
                                                                                           {"dt_bias", bias},
                                                                                           {"state_indices", slots},
                                                                                           {"cu_seqlens", sequences.cu_seqlens},
                                                                                           {"num_accepted_tokens", accepted},
                                                                                           {"step_slots", rows},
                                                                                           {"has_initial_state", has_initial},
                                                                                           {"write_indices", written},
                                                                                           {"parents", parents}});
    return prepared;
}

void run_decode(const FusedDecode& x) {
    run_by_token(prepare_decode(x), x.name);
}

GDN_REGISTER(FusedDecode, prepare_decode, run_decode)

}  // namespace
}  // namespace gdn_cuda::gdn

namespace gdn_cuda {

Tensor fused_decode(const FusedDecode& given) {
    return into_out<FusedDecode, gdn::run_decode>(given, [](const auto& x) { return gdn::with_new_output(x); });
}

}  // namespace gdn_cuda
