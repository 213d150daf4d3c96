// replay_decode: speculative verify that keeps tokens beside the pool and applies the accepted ones in the next call.
#include <gdn_cuda/gdn.hpp>

#include "../../operators/operator.hpp"
#include "../common/ring.hpp"
#include "replay.hpp"
#include "stored_tokens.hpp"

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

PreparedReplay prepare_replay(const ReplayDecode& x) {
    const Checks check{x.name};
    const Sequences sequences = check_sequences(check, x.query, x.key, x.value, view_of(x.cu_seqlens));
    check_rows(check, sequences);
    Prepared common = prepare(check, sequences, x.out, x.scale, x.use_qk_l2norm);
    const GateTensors gates = check_raw_gates(check, common, x.a, x.b, x.gates, x.bound);
    const GdnCall& recurrent = common.args;
    PreparedReplay prepared{.sequences = sequences, .problem = {}};
    ReplayArgs& args = prepared.args;
    set_call(args, recurrent);
    args.channels = recurrent.channels;
    args.forms = recurrent.forms;
    const bool channel_gates = recurrent.channels.form != ChannelGate::none;

    const View pool(x.state_pool), slots = view_of(x.state_indices), accepted = accepted_of(x.verify);
    GDN_REQUIRE(check, pool.dtype != torch_numbers.i8, "state_pool",
                "float32 or bfloat16 (ring_decode and ring_buffers take int8)", "int8");
    const DType state = common.state_type = dtype_beside(check, "state_pool", pool, sequences.io, {DType::f32, DType::bf16});
    const RecurrentStates states = check_states(check, common, "state_pool", pool, 4);
    GDN_REQUIRE(check, common.plain_states, "state_pool", "contiguous states", stride_text(pool));
    check.distinct("state_pool", pool);
    args.pool = states.data;
    args.pool_slot = states.slot;
    set_sequence_slots(check, args, pool, slots, accepted, x.null_slot, sequences.batch());

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
