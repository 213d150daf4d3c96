// ring_decode: decode from a state that lacks the last tokens, which a ring beside the pool holds.
#include "ring_decode.hpp"

#include <gdn_cuda/gdn.hpp>

#include "../../operators/operator.hpp"
#include "prepared.hpp"
#include "state_scales.hpp"

namespace gdn_cuda::gdn {
namespace {

struct PreparedRing {
    Sequences sequences;
    RingDecodeProblem problem;
    RingDecodeArgs args{};
};

// A tensor of the ring: every slot's entries are whole rows, which the kernel copies 16 bytes at a time.
void check_ring(const Checks& check, const char* argument, const View& ring, std::initializer_list<int64_t> shape,
                const char* layout, DType type, const View& query) {
    check.shape(argument, ring, shape, layout);
    check.dtype(argument, ring, {type});
    check.device(argument, ring, query, "query");
    check.distinct(argument, ring);
    if (ring.rank < 4) return;
    check.last_contiguous(argument, ring);
    GDN_REQUIRE(check, type == DType::f64 || ring.aligned16(), argument, "rows that begin at multiples of 16 bytes",
                stride_text(ring));
}

void check_rows(const Checks& check, const Sequences& sequences) {
    dtype_or_f64(check, "query", sequences.query, {DType::bf16, DType::f16});
    for (const auto& [argument, rows] :
         {std::pair{"query", &sequences.query}, std::pair{"key", &sequences.key}, std::pair{"value", &sequences.value}}) {
        check.last_contiguous(argument, *rows);
        GDN_REQUIRE(check, rows->size(-1) % 8 == 0, argument, "a head dimension that is a multiple of 8",
                    fmt::format("{}", rows->size(-1)));
    }
}

PreparedRing prepare_ring(const RingDecode& x) {
    const Checks check{x.name};
    const Sequences sequences = check_sequences(check, x.query, x.key, x.value, view_of(x.cu_seqlens));
    check_rows(check, sequences);
    Prepared common = prepare(check, sequences, x.out, x.scale, x.use_qk_l2norm);
    const GateTensors gates = check_raw_gates(check, common, x.a, x.b, x.gates, x.bound);
    const GdnCall& call = common.args;
    GDN_REQUIRE(check, call.channels.form == ChannelGate::none, "a", "a gate for each head", "a gate for every channel");
    GDN_REQUIRE(check, sequences.packed() || sequences.tokens <= kMostRingTokens, "query",
                fmt::format("at most {} tokens", kMostRingTokens), shape_text(sequences.query));
    PreparedRing prepared{.sequences = sequences, .problem = {}};
    RingDecodeArgs& args = prepared.args;
    args.query = call.query, args.key = call.key, args.value = call.value, args.output = call.output;
    args.whole_vectors = common.aligned;
    args.sequences = call.sequences, args.tokens = call.tokens;
    args.heads = call.heads, args.heads_per_key = call.heads_per_key;
    args.dk = call.dk, args.dv = call.dv;
    args.scale = call.scale, args.qk_norm = call.qk_norm;
    args.cu_seqlens = call.cu_seqlens;
    args.gate = call.gate, args.beta = call.beta;
    args.A_log = call.A_log, args.dt_bias = call.dt_bias;
    args.beta_factor = call.forms.beta_factor;

    const View pool(x.state_pool), slots = view_of(x.state_indices), accepted = accepted_of(x.verify);
    check.rank("state_pool", pool, 4, "(slots, Hv, dv, dk)");
    check.shape("state_pool", pool, {pool.size(0), sequences.heads, sequences.dv, sequences.dk}, "(slots, Hv, dv, dk)");
    const DType state = dtype_beside(check, "state_pool", pool, sequences.io, {DType::f32, DType::bf16, DType::f16, DType::i8});
    check.device("state_pool", pool, sequences.query, "query");
    const View scales = view_of(x.state_scales);
    check_state_scales(check, "state_pool", pool, "state_scales", scales);
    GDN_REQUIRE(check, !scales.defined() || (reinterpret_cast<uintptr_t>(scales.data) % 16 == 0 && scales.stride(0) % 4 == 0),
                "state_scales", "scales of slots that begin at multiples of 16 bytes", stride_text(scales));
    GDN_REQUIRE(check, pool.contiguous_tail(3) && (state == DType::f64 || pool.aligned16()), "state_pool",
                "contiguous states that begin at multiples of 16 bytes", stride_text(pool));
    check.distinct("state_pool", pool);
    args.pool = pool.data;
    args.pool_slot = pool.stride(0);
    if (scales.defined()) args.scales = static_cast<float*>(scales.data), args.scales_slot = scales.stride(0);
    check_slots(check, {.pool_name = "state_pool", .slots_name = "state_indices", .pool = pool, .slots = slots},
                sequences.batch());
    GDN_REQUIRE(check, !slots.defined() || slots.rank == 1, "state_indices", "(sequences,), a slot each", shape_text(slots));
    args.slots = tagged(slots);
    args.slots_sequence = slots.defined() ? slots.stride(0) : 0;
    args.slot_count = check.count("state_pool", "slots", pool.size(0));
    args.accepted = check_accepted(check, accepted, sequences.batch());
    args.null_slot = check_null_slot(check, x.null_slot);
    args.fold = x.fold;
    const View fold_mask = view_of(x.fold_mask);
    if (fold_mask.defined()) {
        check.shape("fold_mask", fold_mask, {sequences.count}, "(sequences,)");
        GDN_REQUIRE(check, fold_mask.dtype == torch_numbers.boolean, "fold_mask", "bool", dtype_name(fold_mask));
        check.device("fold_mask", fold_mask, sequences.query, "query");
        check.last_contiguous("fold_mask", fold_mask);
        args.fold_mask = static_cast<const bool*>(fold_mask.data);
    }

    const View keys(x.keys), updates(x.updates), decays(x.decays), pending(x.pending);
    check.rank("keys", keys, 4, "(slots, W, Hk, dk)");
    const int64_t count = pool.size(0), entries = keys.size(1);
    const DType wide = sequences.io == DType::f64 ? DType::f64 : DType::f32;
    GDN_REQUIRE(check, entries >= 1 && entries <= kMostRingEntries, "keys",
                fmt::format("room for 1 to {} tokens in each slot", kMostRingEntries), shape_text(keys));
    GDN_REQUIRE(check, sequences.packed() || !accepted.defined() || sequences.tokens <= entries, "query",
                fmt::format("at most {} tokens, as keys {} have room for no more", entries, shape_text(keys)),
                shape_text(sequences.query));
    check_ring(check, "keys", keys, {count, entries, sequences.key_heads, sequences.dk}, "(slots, W, Hk, dk)", sequences.io,
               sequences.query);
    check_ring(check, "updates", updates, {count, entries, sequences.heads, sequences.dv}, "(slots, W, Hv, dv)",
               state == DType::f32 ? DType::f32 : sequences.io, sequences.query);
    check_ring(check, "decays", decays, {count, entries, sequences.heads}, "(slots, W, Hv)", wide, sequences.query);
    check_ring(check, "pending", pending, {count}, "(slots,)", DType::i32, sequences.query);
    check.last_contiguous("pending", pending);
    args.keys = keys.data;
    args.keys_slot = keys.stride(0), args.keys_entry = keys.stride(1), args.keys_head = keys.stride(2);
    args.updates = updates.data;
    args.updates_slot = updates.stride(0), args.updates_entry = updates.stride(1), args.updates_head = updates.stride(2);
    args.decays = static_cast<float*>(decays.data);
    args.decays_slot = decays.stride(0), args.decays_entry = decays.stride(1), args.decays_head = decays.stride(2);
    args.pending = static_cast<unsigned*>(pending.data);
    args.entries = static_cast<int>(entries);

    check_apart(check, sequences, gates,
                {{"state_pool", pool},
                 {"state_scales", scales},
                 {"keys", keys},
                 {"updates", updates},
                 {"decays", decays},
                 {"pending", pending},
                 {"out", common.output}},
                {{"state_indices", slots}, {"fold_mask", fold_mask}, {kAcceptedTokens, accepted}});
    prepared.problem = {.sequences = sequences.count,
                        .tokens = sequences.packed() ? kMostRingTokens : static_cast<int>(sequences.tokens),
                        .entries = args.entries,
                        .heads = args.heads,
                        .key_heads = args.heads / args.heads_per_key,
                        .dk = args.dk,
                        .dv = args.dv,
                        .io = sequences.io,
                        .state = state};
    constexpr i64 kMostBlocksOfSequence = (1 << (32 - kRingPendingBits)) - 1;
    const Blocks blocks = ring_decode_blocks(prepared.problem, RingDecodeConfig::kTileRows);
    GDN_REQUIRE(check, blocks[0] * blocks[1] <= kMostBlocksOfSequence, "value",
                fmt::format("at most {} rows in all heads", kMostBlocksOfSequence * RingDecodeConfig::kTileRows),
                fmt::format("{}", sequences.heads * sequences.dv));
    check.grid("query", blocks);
    return prepared;
}

void run_ring(const RingDecode& x) {
    const PreparedRing prepared = prepare_ring(x);
    const DeviceScope scope(prepared.sequences.query.device_index);
    clear_without_sequences(prepared.sequences, x.out);
    RingDecodeKernel::run(prepared.problem, prepared.args, target_of(x.name, prepared.sequences.query));
}

GDN_REGISTER(RingDecode, prepare_ring, run_ring)

}  // namespace
}  // namespace gdn_cuda::gdn

namespace gdn_cuda {

Tensor ring_decode(const RingDecode& given) {
    return into_out<RingDecode, gdn::run_ring>(given, [](const auto& x) { return with_output_like(x.value, x); });
}

}  // namespace gdn_cuda
