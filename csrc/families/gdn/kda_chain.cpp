// An operator that runs one chain of Kimi Delta Attention's backward on records in memory, as tests look at the chain alone.
#include "../../operators/operator.hpp"
#include "backward_chain.hpp"
#include "prepared.hpp"

namespace gdn_cuda::gdn {
namespace {

struct GDN_HOLDS_TENSORS KdaChain {
    static constexpr const char* name = "kda_chain";
    Given key, value;  // key: for its shape; value: the chain's values, backward in time the gradient of outputs
    OptionalTensor state = {}, cu_seqlens = {};  // state: before the chain's first chunk
    double scale = 1;
    bool backward = false;
    int64_t segments = 1;
    Given records;                    // bytes (heads, chunks, sizeof(KdaTrainingRecord))
    Written states;                   // before the chain's chunks (heads, chunks, dv, dk)
    OptionalWritten last_state = {};  // after its last chunk
    Written out;                      // the gradient of values, or R (heads, chunks, 2, 64, dv)

    GDN_FIELDS(key, value, state, cu_seqlens, scale, backward, segments, records, states, last_state, out)
};

struct PreparedChain {
    Prepared prepared;
    BackwardHandover handover;
};

PreparedChain prepare_chain(const KdaChain& x) {
    const Checks check{x.name};
    const Sequences sequences = check_sequences(check, x.key, x.key, x.value, view_of(x.cu_seqlens));
    Prepared prepared = x.backward ? prepare(check, sequences, x.out, x.scale, false) : prepare_states(sequences, false);
    prepared.args.channels.form = ChannelGate::log_decay;
    if (x.state) prepared.args.initial = check_initial(check, prepared, "state", View(*x.state), 4);
    if (x.last_state) prepared.args.last = check_final_state(check, prepared, View(*x.last_state));
    GDN_REQUIRE(check, prepared.plain_states && prepared.state_type == DType::f32, "state", "dense states in float32",
                "others");
    const View records(x.records), states(x.states), out(x.out);
    const i64 heads = sequences.heads,
              chunks = chunk_indices(sequences.packed(), prepared.args.sequences, prepared.args.tokens);
    check.shape("records", records, {heads, chunks, i64{sizeof(KdaTrainingRecord)}}, "(heads, chunks, bytes)");
    check.shape("states", states, {heads, chunks, sequences.dv, sequences.dk}, "(heads, chunks, dv, dk)");
    if (!x.backward) check.shape("out", out, {heads, chunks, 2, kChunk, sequences.dv}, "(heads, chunks, parts, tokens, dv)");
    GDN_REQUIRE(check, BackwardChain::takes(prepared.args) && sequences.plain() && sequences.dk <= kKdaHeadK, "key",
                "rows that start on 16 bytes, dk up to 128", shape_text(View(x.key)));
    const i64 sequence = ceil_div(sequences.tokens, i64{kChunk});
    GDN_REQUIRE(check, x.segments >= 1 && (x.segments - 1) * ceil_div(sequence, x.segments) < sequence, "segments",
                "so many that none is empty", fmt::format("{}", x.segments));
    return {prepared,
            {.states = states.data,
             .state_gradients = states.data,
             .errors = x.backward ? nullptr : out.data,
             .prepared = records.data,
             .chunks = chunks}};
}

void run_chain(const KdaChain& x) {
    const auto [prepared, handover] = prepare_chain(x);
    const GdnCall& call = prepared.args;
    const DeviceScope scope(prepared.sequences.query.device_index);
    const Target target = target_of(x.name, prepared.sequences.query);
    const int segments = static_cast<int>(x.segments);
    const Tensor memory = new_tensor(x.value, {BackwardChain::link_words(call, segments)}, ScalarType::Float);
    const ChainSegments chain = BackwardChain::links(call, segments, static_cast<float*>(memory_of(memory)));
    const auto run = [&](const ChainSegments& part) {
        BackwardChain::run(x.backward ? Direction::backward : Direction::forward, part, call, handover, prepared.sequences.io,
                           target);
    };
    run(chain);
    if (segments == 1) return;
    BackwardLinks::run(call, {.chains = {chain}, .heads = call.heads, .dv = call.dv, .dk = call.dk}, 1, target);
    run(chain.without_first());
}

STABLE_TORCH_LIBRARY_FRAGMENT(gdn_cuda, m) {
    define<KdaChain, run_chain>(m);
}
STABLE_TORCH_LIBRARY_IMPL(gdn_cuda, CUDA, m) {
    m.impl(KdaChain::name, &detail::run_boxed<KdaChain, run_chain>);
}

}  // namespace
}  // namespace gdn_cuda::gdn
