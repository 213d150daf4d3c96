// ring_decode: decode from a state that lacks the last tokens, which a ring beside the pool holds.
#include "ring_decode.hpp"

#include <gdn_cuda/gdn.hpp>

#include "../../operators/operator.hpp"
#include "../common/ring.hpp"
#include "stored_tokens.hpp"

namespace gdn_cuda::gdn {
namespace {

struct PreparedRing {
    Sequences sequences;
    RingDecodeProblem problem;
    RingDecodeArgs args{};
};

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
    set_call(args, call);
    args.whole_vectors = common.aligned;

    const RingTensors ring(x);
    const View keys(x.keys), updates(x.updates), decays(x.decays);
    const Batch batch = sequences.batch();
    check.rank("state_pool", ring.pool, 4, "(slots, Hv, dv, dk)");
    const int64_t slots = ring.pool.size(0);
    const DType state = check_ring_pool(check, args, ring, {slots, sequences.heads, sequences.dv, sequences.dk},
                                        "(slots, Hv, dv, dk)", "dk", sequences.io, batch);
    check_ring_room(check, args, ring, "keys", keys, "(slots, W, Hk, dk)", batch);
    const int64_t entries = args.entries;
    args.keys = check_ring(check, "keys", keys, {slots, entries, sequences.key_heads, sequences.dk}, "(slots, W, Hk, dk)",
                           sequences.io, batch);
    args.updates = check_ring(check, "updates", updates, {slots, entries, sequences.heads, sequences.dv}, "(slots, W, Hv, dv)",
                              state == DType::f32 ? DType::f32 : sequences.io, batch);
    args.decays = check_ring(check, "decays", decays, {slots, entries, sequences.heads}, "(slots, W, Hv)",
                             sequences.io == DType::f64 ? DType::f64 : DType::f32, batch);
    check_ring_pending(check, args, ring, batch);

    check_apart(check, sequences, gates,
                {{"state_pool", ring.pool},
                 {"state_scales", ring.scales},
                 {"keys", keys},
                 {"updates", updates},
                 {"decays", decays},
                 {"pending", ring.pending},
                 {"out", common.output}},
                {{"state_indices", ring.slots}, {"fold_mask", ring.fold_mask}, {kAcceptedTokens, ring.accepted}});
    prepared.problem = {.sequences = sequences.count,
                        .tokens = sequences.packed() ? kMostRingTokens : static_cast<int>(sequences.tokens),
                        .entries = args.entries,
                        .heads = args.heads,
                        .key_heads = args.heads / args.heads_per_key,
                        .dk = args.dk,
                        .dv = args.dv,
                        .io = sequences.io,
                        .state = state};
    check_ring_blocks(check, prepared.problem, "query", "value", "rows", sequences.heads * sequences.dv);
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
