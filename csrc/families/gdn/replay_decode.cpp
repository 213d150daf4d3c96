// replay_decode: speculative verify that keeps tokens beside the pool and applies the accepted ones in the next call.
#include <gdn_cuda/gdn.hpp>

#include "../../operators/operator.hpp"
#include "prepared.hpp"
#include "replay.hpp"

namespace gdn_cuda::gdn {
namespace {

struct PreparedReplay {
    Sequences sequences;
    ReplayProblem problem;
    ReplayArgs args{};
};

// What is stored for a slot is contiguous, and slots are as many as in the pool.
void check_stored(const Checks& check, const char* argument, const View& stored, std::initializer_list<int64_t> shape,
                  const char* layout, DType type, const View& query) {
    check.shape(argument, stored, shape, layout);
    check.dtype(argument, stored, {type});
    check.device(argument, stored, query, "query");
    GDN_REQUIRE(check, stored.contiguous_tail(stored.rank - 1), argument, "contiguous numbers in each slot",
                stride_text(stored));
    check.distinct(argument, stored);
}

// What gdn/replay has no code for.
void check_rows(const Checks& check, const Sequences& sequences) {
    dtype_or_f64(check, "query", sequences.query, {DType::bf16, DType::f16});
    for (const auto& [argument, rows] :
         {std::pair{"query", &sequences.query}, std::pair{"key", &sequences.key}, std::pair{"value", &sequences.value}}) {
        check.last_contiguous(argument, *rows);
        GDN_REQUIRE(check, rows->size(-1) % 8 == 0, argument, "a head dimension that is a multiple of 8",
                    fmt::format("{}", rows->size(-1)));
    }
}

PreparedReplay prepare_replay(const ReplayDecode& x) {
    const Checks check{x.name};
    const Sequences sequences = check_sequences(check, x.query, x.key, x.value, view_of(x.cu_seqlens));
    check_rows(check, sequences);
    Prepared common = prepare(check, sequences, x.out, x.scale, x.use_qk_l2norm);
    const GateTensors gates = check_raw_gates(check, common, x.a, x.b, x.gates, x.bound);
    const GdnCall& recurrent = common.args;
    PreparedReplay prepared{.sequences = sequences, .problem = {}};
    ReplayArgs& args = prepared.args;
    args.query = recurrent.query;
    args.key = recurrent.key;
    args.value = recurrent.value;
    args.output = recurrent.output;
    args.sequences = recurrent.sequences;
    args.tokens = recurrent.tokens;
    args.heads = recurrent.heads;
    args.heads_per_key = recurrent.heads_per_key;
    args.dk = recurrent.dk;
    args.dv = recurrent.dv;
    args.scale = recurrent.scale;
    args.qk_norm = recurrent.qk_norm;
    args.cu_seqlens = recurrent.cu_seqlens;
    args.gate = recurrent.gate;
    args.beta = recurrent.beta;
    args.A_log = recurrent.A_log;
    args.dt_bias = recurrent.dt_bias;
    args.beta_factor = recurrent.forms.beta_factor;
    args.channels = recurrent.channels;
    args.forms = recurrent.forms;
    const bool channel_gates = recurrent.channels.form != ChannelGate::none;

    const View pool(x.state_pool), slots = view_of(x.state_indices), accepted = accepted_of(x.verify);
    const DType state = common.state_type = dtype_beside(check, "state_pool", pool, sequences.io, {DType::f32, DType::bf16});
    const RecurrentStates states = check_states(check, common, "state_pool", pool, 4);
    GDN_REQUIRE(check, common.plain_states, "state_pool", "contiguous states", stride_text(pool));
    check.distinct("state_pool", pool);
    args.pool = states.data;
    args.pool_slot = states.slot;
    check_slots(check, {.pool_name = "state_pool", .slots_name = "state_indices", .pool = pool, .slots = slots},
                sequences.batch());
    GDN_REQUIRE(check, !slots.defined() || slots.rank == 1, "state_indices", "(sequences,), a slot each", shape_text(slots));
    args.slots = tagged(slots);
    args.slots_sequence = slots.defined() ? slots.stride(0) : 0;
    args.slot_count = check.count("state_pool", "slots", pool.size(0));
    args.accepted = check_accepted(check, accepted, sequences.batch());
    args.null_slot = check_null_slot(check, x.null_slot);

    const View keys(x.keys), updates(x.updates), decays(x.decays), banks(x.banks);
    check.rank("keys", keys, 5, "(slots, 2, S, Hk, dk)");
    const int64_t count = pool.size(0), steps = keys.size(2);
    const DType wide = sequences.io == DType::f64 ? DType::f64 : DType::f32;
    GDN_REQUIRE(check, steps >= 1 && steps <= kMostReplayTokens, "keys",
                fmt::format("room for 1 to {} steps in each slot", kMostReplayTokens), shape_text(keys));
    GDN_REQUIRE(check, sequences.packed() || sequences.tokens <= steps, "query",
                fmt::format("at most {} tokens, as keys {} have room for no more steps", steps, shape_text(keys)),
                shape_text(sequences.query));
    check_stored(check, "keys", keys, {count, 2, steps, sequences.key_heads, sequences.dk}, "(slots, 2, S, Hk, dk)",
                 sequences.io, sequences.query);
    check_stored(check, "updates", updates, {count, steps, sequences.value_heads, sequences.dv}, "(slots, S, Hv, dv)", wide,
                 sequences.query);
    if (channel_gates)
        check_stored(check, "decays", decays, {count, 2, steps, sequences.value_heads, sequences.dk}, "(slots, 2, S, Hv, dk)",
                     wide, sequences.query);
    else
        check_stored(check, "decays", decays, {count, 2, steps, sequences.value_heads}, "(slots, 2, S, Hv)", wide,
                     sequences.query);
    check_stored(check, "banks", banks, {count, sequences.value_heads, ceil_div(sequences.dv, kRowsPerBank)},
                 "(slots, Hv, dv / 8)", DType::f32, sequences.query);
    args.keys = keys.data;
    args.updates = static_cast<float*>(updates.data);
    args.decays = static_cast<float*>(decays.data);
    args.banks = static_cast<float*>(banks.data);
    args.keys_slot = keys.stride(0);
    args.updates_slot = updates.stride(0);
    args.decays_slot = decays.stride(0);
    args.banks_slot = banks.stride(0);
    args.stored_steps = static_cast<int>(steps);

    check_apart(check, sequences, gates,
                {{"state_pool", pool},
                 {"keys", keys},
                 {"updates", updates},
                 {"decays", decays},
                 {"banks", banks},
                 {"out", common.output}},
                {{"state_indices", slots}, {kAcceptedTokens, accepted}});
    prepared.problem = {.sequences = sequences.count,
                        .heads = args.heads,
                        .dk = args.dk,
                        .dv = args.dv,
                        .stored_steps = args.stored_steps,
                        .io = sequences.io,
                        .state = state,
                        .aligned = common.aligned && keys.aligned16() && (!channel_gates || decays.aligned16()),
                        .channel_gates = channel_gates};
    check.grid("query", {replay_blocks(prepared.problem, 1), 1, 1});
    return prepared;
}

void run_replay(const ReplayDecode& x) {
    const PreparedReplay prepared = prepare_replay(x);
    const DeviceScope scope(prepared.sequences.query.device_index);
    const Target target = target_of(x.name, prepared.sequences.query);
    const int needed = Replay::shared_bytes(replay_config(prepared.problem)),
              room = jit::device_traits(target.ordinal).shared_bytes_per_block;
    GDN_REQUIRE(Checks{x.name}, needed <= room, "a",
                fmt::format("a gate for each head, or fewer tokens, as a block has {} KB of shared memory here", room >> 10),
                fmt::format("a gate for every channel, which takes {} KB", needed >> 10));
    clear_without_sequences(prepared.sequences, x.out);
    Replay::run(prepared.problem, prepared.args, target);
}

GDN_REGISTER(ReplayDecode, prepare_replay, run_replay)

}  // namespace
}  // namespace gdn_cuda::gdn

namespace gdn_cuda {

Tensor replay_decode(const ReplayDecode& given) {
    return into_out<ReplayDecode, gdn::run_replay>(given, [](const auto& x) { return with_output_like(x.value, x); });
}

}  // namespace gdn_cuda
