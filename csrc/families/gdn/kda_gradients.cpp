// An operator that runs gdn/kda_gradients alone, as tests give it what the passes before it hand over.
#include "kda_gradients.hpp"

#include "../../operators/operator.hpp"
#include "prepared.hpp"

namespace gdn_cuda::gdn {
namespace {

struct GDN_HOLDS_TENSORS KdaGradientsOfChunks {
    static constexpr const char* name = "kda_gradients";
    Given query, key, gate;
    OptionalTensor beta = {}, cu_seqlens = {};
    std::optional<double> scale = {}, lower_bound = {};
    bool use_qk_l2norm = false;
    GateOptions gates = {};
    // Bytes (heads, chunks, sizeof(KdaTrainingRecord)); (heads, chunks, dv, dk) twice; (heads, chunks, 2, 64, dv).
    Given records, states, state_gradients, errors;
    Given output_gradient;
    Written value_gradient, query_gradient, key_gradient, gate_gradient;
    OptionalWritten beta_gradient = {}, sums = {};  // (2, chunks, heads, dk)

    GDN_FIELDS(query, key, gate, beta, cu_seqlens, scale, lower_bound, use_qk_l2norm, gates, records, states, state_gradients,
               errors, output_gradient, value_gradient, query_gradient, key_gradient, gate_gradient, beta_gradient, sums)
};

void run_gradients(const KdaGradientsOfChunks& x) {
    const Checks check{x.name};
    const Sequences sequences = check_sequences(check, x.query, x.key, x.output_gradient, view_of(x.cu_seqlens));
    Prepared prepared = prepare(check, sequences, x.value_gradient, x.scale, x.use_qk_l2norm);
    GateOptions others = x.gates;
    check_gates(check, prepared, x.beta, x.gate, others, GateBound{x.lower_bound});
    const GdnCall& call = prepared.args;
    GDN_REQUIRE(check, call.channels.form != ChannelGate::none, "gate", "a gate for every channel of the key",
                shape_text(View(x.gate)));
    const i64 heads = sequences.heads, dk = sequences.dk, dv = sequences.dv,
              chunks = chunk_indices(sequences.packed(), call.sequences, call.tokens);
    const View records(x.records), states(x.states), state_gradients(x.state_gradients), errors(x.errors);
    check.shape("records", records, {heads, chunks, int64_t{sizeof(KdaTrainingRecord)}}, "(heads, chunks, bytes)");
    check.shape("states", states, {heads, chunks, dv, dk}, "(heads, chunks, dv, dk)");
    check.shape("state_gradients", state_gradients, {heads, chunks, dv, dk}, "(heads, chunks, dv, dk)");
    check.shape("errors", errors, {heads, chunks, 2, kChunk, dv}, "(heads, chunks, 2, 64, dv)");
    const auto rows = [&](const auto& tensor) { return rows_of(sequences.without_batch(View(tensor))); };
    const KdaGradientsCall gradients{.call = call,
                                     .output_gradient = rows(x.output_gradient),
                                     .value_gradient = rows(x.value_gradient),
                                     .query_gradient = rows(x.query_gradient),
                                     .key_gradient = rows(x.key_gradient),
                                     .gate_gradient = tagged(View(x.gate_gradient)),
                                     .beta_gradient = x.beta_gradient ? tagged(View(*x.beta_gradient)) : Tagged{},
                                     .scalars_sequence = sequences.packed() ? 0 : sequences.tokens * heads,
                                     .scalars_token = heads,
                                     .sums = x.sums ? static_cast<float*>(View(*x.sums).data) : nullptr,
                                     .sums_which = chunks * heads * dk,
                                     .sums_row = heads * dk,
                                     .from = {.scalars = nullptr,
                                              .states = states.data,
                                              .state_gradients = state_gradients.data,
                                              .errors = errors.data,
                                              .prepared = records.data,
                                              .chunks = chunks}};
    const DeviceScope scope(sequences.query.device_index);
    const Target target = target_of(x.name, sequences.query);
    GDN_REQUIRE(check, KdaGradients::takes(gradients, jit::device_traits(target.ordinal)), "query",
                "rows that TMA takes, dk and dv up to 128, a key head a value head, on Hopper", shape_text(View(x.query)));
    KdaGradients::run(gradients, sequences.io, target);
}

STABLE_TORCH_LIBRARY_FRAGMENT(gdn_cuda, m) {
    define<KdaGradientsOfChunks, run_gradients>(m);
}
STABLE_TORCH_LIBRARY_IMPL(gdn_cuda, CUDA, m) {
    m.impl(KdaGradientsOfChunks::name, &detail::run_boxed<KdaGradientsOfChunks, run_gradients>);
}

}  // namespace
}  // namespace gdn_cuda::gdn
