// The launches of Kimi Delta Attention by chunks, and an operator that runs one of them or both: tests and benchmarks look at
// what is between them. chunked_forward does not take gates of channels yet.
#include "kda_chunks.hpp"

#include <limits>

#include "../../operators/operator.hpp"
#include "by_chunk.hpp"

namespace gdn_cuda::gdn {

bool fits_kda_chunks(const Prepared& prepared, const PrefillTensors& tensors) {
    const Sequences& sequences = prepared.sequences;
    const Scalars& gate = prepared.args.gate;
    const int64_t bytes = bytes_of(gate.values.type);
    const auto in_pairs = [&](int64_t stride) { return stride % 2 == 0; };
    const bool gates = prepared.args.channels.channel == 1 && in_pairs(gate.batch) && in_pairs(gate.token) &&
                       gate.token * bytes <= std::numeric_limits<unsigned>::max() && in_pairs(gate.head) &&
                       reinterpret_cast<uintptr_t>(gate.values.data) % (2 * bytes) == 0;
    return gates && prepared.aligned && sequences.plain() && sequences.dk <= kKdaHeadK && sequences.dv <= kKdaHeadK &&
           jit::can_tile(tensors.query) && jit::can_tile(tensors.key) && jit::can_tile(tensors.value) &&
           jit::can_tile(tensors.output) && kda_records(sequences) <= std::numeric_limits<int>::max() / kChunk;
}

void prepare_kda_chunks(const Prepared& prepared, const PrefillTensors& tensors, const KdaWorkspace& workspace,
                        const Target& target) {
    const auto map = [&](const jit::TiledTensor& tensor) {
        return jit::tile_map(tensor, prepared.sequences.io, kChunk, target.ordinal);
    };
    KdaPrepare::run(prepared.sequences.io,
                    {.query = map(tensors.query),
                     .key = map(tensors.key),
                     .call = prepared.args,
                     .records = workspace.records,
                     .flags = workspace.flags,
                     .per_head = static_cast<int>(kda_records(prepared.sequences))},
                    target);
}

void own_kda_chunks(const Prepared& prepared, const PrefillTensors& tensors, const KdaWorkspace& workspace,
                    const Target& target) {
    const GdnCall& call = prepared.args;
    const auto map = [&](const jit::TiledTensor& tensor) {
        return jit::tile_map(tensor, prepared.sequences.io, kChunk, target.ordinal);
    };
    const ChunkedArgs chunked{.value = map(tensors.value),
                              .output = map(tensors.output),
                              .call = call,
                              .state = prepared.state_type,
                              .segments = 1,
                              .takes = LaunchTakes::every_call,
                              .step_interval = call.steps.data != nullptr ? Divisor(call.step_interval) : Divisor()};
    KdaOwn::run(prepared.sequences.io,
                {.chunked = chunked,
                 .records = workspace.records,
                 .flags = workspace.flags,
                 .per_head = static_cast<int>(kda_records(prepared.sequences)),
                 .row_tiles = static_cast<int>(ceil_div(call.dv, kValueRows))},
                target);
}

namespace {

struct GDN_HOLDS_TENSORS KdaChunks {
    static constexpr const char* name = "kda_chunks";
    Given query, key, value, gate;
    OptionalTensor beta = {}, state = {}, cu_seqlens = {};
    std::optional<double> scale = {}, lower_bound = {};
    bool use_qk_l2norm = false;
    GateOptions gates = {};
    bool prepares = true, owns = true;
    Written records, flags;  // bytes (heads, records, sizeof(KdaRecord)), and int32 (heads, records)
    OptionalWritten final_state = {};
    Written out;

    GDN_FIELDS(query, key, value, gate, beta, state, cu_seqlens, scale, lower_bound, use_qk_l2norm, gates, prepares, owns,
               records, flags, final_state, out)
};

Prepared prepare_chunks(const KdaChunks& x) {
    const Checks check{x.name};
    const Sequences sequences = check_sequences(check, x.query, x.key, x.value, view_of(x.cu_seqlens));
    Prepared prepared = prepare(check, sequences, x.out, x.scale, x.use_qk_l2norm);
    GateOptions others = x.gates;
    check_gates(check, prepared, x.beta, x.gate, others, GateBound{x.lower_bound});
    GDN_REQUIRE(check, prepared.args.channels.form != ChannelGate::none, "gate", "a gate for every channel of the key",
                shape_text(View(x.gate)));
    if (x.state) prepared.args.initial = check_initial(check, prepared, "state", View(*x.state), 4);
    if (x.final_state) prepared.args.last = check_final_state(check, prepared, View(*x.final_state));
    const View records(x.records), flags(x.flags);
    const int64_t count = kda_records(sequences);
    check.shape("records", records, {sequences.heads, count, int64_t{sizeof(KdaRecord)}}, "(heads, records, bytes)");
    check.shape("flags", flags, {sequences.heads, count}, "(heads, records)");
    return prepared;
}

void run_chunks(const KdaChunks& x) {
    const Prepared prepared = prepare_chunks(x);
    const PrefillTensors tensors = tensors_of(prepared);
    const Checks check{x.name};
    GDN_REQUIRE(check, fits_kda_chunks(prepared, tensors), "query", "rows that start on 16 bytes, dk and dv up to 128",
                shape_text(View(x.query)));
    const DeviceScope scope(prepared.sequences.query.device_index);
    const Target target = target_of(x.name, prepared.sequences.query);
    const KdaWorkspace workspace{static_cast<KdaRecord*>(View(x.records).data), static_cast<unsigned*>(View(x.flags).data)};
    if (x.prepares) prepare_kda_chunks(prepared, tensors, workspace, target);
    if (x.owns) own_kda_chunks(prepared, tensors, workspace, target);
}

STABLE_TORCH_LIBRARY_FRAGMENT(gdn_cuda, m) {
    define<KdaChunks, run_chunks>(m);
}
STABLE_TORCH_LIBRARY_IMPL(gdn_cuda, CUDA, m) {
    m.impl(KdaChunks::name, &detail::run_boxed<KdaChunks, run_chunks>);
}

}  // namespace
}  // namespace gdn_cuda::gdn
