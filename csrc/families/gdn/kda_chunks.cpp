// The launches of Kimi Delta Attention by chunks; and an operator that runs one of them or both on the whole call, as tests and
// benchmarks look at what is between them.
#include "kda_chunks.hpp"

#include <algorithm>
#include <limits>

#include "../../operators/operator.hpp"
#include "by_chunk.hpp"
#include "chunk_inputs.hpp"

namespace gdn_cuda::gdn {
namespace {

bool carries_in_final_states(const Prepared& prepared) {
    return prepared.args.last.data != nullptr && prepared.state_type == DType::f32;
}

}  // namespace

int kda_window(const Prepared& prepared) {
    const int64_t positions = kda_positions(prepared.sequences);
    if (const int wanted = kKdaWindowVariable.value(); wanted > 0)
        return static_cast<int>(std::min<int64_t>(wanted, positions));
    return kda_window(positions, prepared.args.heads);
}

KdaWorkspaceSize kda_workspace(const Prepared& prepared, int window) {
    const Sequences& sequences = prepared.sequences;
    const int64_t positions = kda_positions(sequences);
    const bool carries = window < positions && !carries_in_final_states(prepared);
    return {.window = window,
            .positions = sequences.packed() ? positions : 0,
            .carried = carries ? sequences.count * sequences.state_numel() : 0,
            .heads = prepared.args.heads};
}

int64_t KdaWorkspaceSize::bytes() const {
    const int64_t records = int64_t{heads} * window;
    return records * sizeof(KdaRecord) + positions * sizeof(KdaChunkPlace) + 4 * (carried + records + positions);
}

KdaWorkspace KdaWorkspaceSize::at(void* memory) const {
    const int64_t records = int64_t{heads} * window;
    KdaWorkspace parts{};
    parts.records = static_cast<KdaRecord*>(memory);
    float* const states = reinterpret_cast<float*>(parts.records + records);
    if (carried > 0) parts.carried = states;
    auto* const places = reinterpret_cast<KdaChunkPlace*>(states + carried);
    if (positions > 0) parts.places = places;
    int* const words = reinterpret_cast<int*>(places + positions);
    if (positions > 0) parts.positions = words;
    parts.flags = reinterpret_cast<unsigned*>(words + positions);
    return parts;
}

bool fits_kda_chunks(const Prepared& prepared, const PrefillTensors& tensors) {
    const Sequences& sequences = prepared.sequences;
    const Scalars& gate = prepared.args.gate;
    const bool is_near = gate.token * bytes_of(gate.values.type) <= std::numeric_limits<unsigned>::max();
    return has_paired_channel_gates(prepared) && is_near && sequences.tokens > 0 && prepared.aligned && sequences.plain() &&
           sequences.dk <= kKdaHeadK && jit::can_tile(tensors.query) && jit::can_tile(tensors.key) &&
           jit::can_tile(tensors.value) && jit::can_tile(tensors.output) &&
           kda_positions(sequences) <= std::numeric_limits<int>::max() / kChunk;
}

void run_kda_chunks(const Prepared& prepared, const PrefillTensors& tensors, const KdaWorkspace& workspace, int window,
                    const Target& target, const KdaLaunches& launches) {
    const GdnCall& call = prepared.args;
    const Sequences& sequences = prepared.sequences;
    if (call.sequences == 0 || call.heads == 0 || call.dv == 0) return;
    const int64_t positions = kda_positions(sequences);
    const auto map = [&](const jit::TiledTensor& tensor) {
        return jit::tile_map(tensor, sequences.io, kChunk, target.ordinal);
    };
    if (sequences.packed()) {
        jit::clear_words(workspace.places, positions * sizeof(KdaChunkPlace) / sizeof(int), target.ordinal, target.stream);
        KdaOrder::run({.cu_seqlens = call.cu_seqlens,
                       .sequences = call.sequences,
                       .tokens = call.tokens,
                       .count = static_cast<int>(positions),
                       .positions = workspace.positions,
                       .places = workspace.places},
                      target);
    }
    KdaPrepareArgs prepare{.query = map(tensors.query),
                           .key = map(tensors.key),
                           .call = {call, {.positions = workspace.positions, .places = workspace.places}},
                           .records = workspace.records,
                           .flags = workspace.flags};
    KdaOwnArgs own{.chunked = {.value = map(tensors.value),
                               .output = map(tensors.output),
                               .call = call,
                               .state = prepared.state_type,
                               .segments = 1,
                               .takes = LaunchTakes::every_call,
                               .step_interval = call.steps.data != nullptr ? Divisor(call.step_interval) : Divisor()},
                   .window = prepare.call.window,
                   .records = workspace.records,
                   .flags = workspace.flags,
                   .carried = workspace.carried,
                   .row_tiles = static_cast<int>(ceil_div(call.dv, kValueRows))};
    for (int64_t first = 0; first < positions; first += window) {
        prepare.call.window.first = own.window.first = static_cast<int>(first);
        prepare.per_head = prepare.call.window.count = own.window.count =
            static_cast<int>(std::min<int64_t>(window, positions - first));
        if (launches.prepares) KdaPrepare::run(sequences.io, prepare, target);
        if (launches.owns) KdaOwn::run(sequences.io, own, target);
        if (explaining()) [[unlikely]] {
            remark(fmt::format("{} windows of chunks, each in these two launches", ceil_div(positions, int64_t{window})));
            break;
        }
    }
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
    const int64_t count = kda_positions(sequences);
    check.shape("records", records, {sequences.heads, count, int64_t{sizeof(KdaRecord)}}, "(heads, records, bytes)");
    check.shape("flags", flags, {sequences.heads, count}, "(heads, records)");
    return prepared;
}

void run_chunks(const KdaChunks& x) {
    const Prepared prepared = prepare_chunks(x);
    const PrefillTensors tensors = tensors_of(prepared);
    const Checks check{x.name};
    GDN_REQUIRE(check, fits_kda_chunks(prepared, tensors), "query", "rows that start on 16 bytes, dk up to 128",
                shape_text(View(x.query)));
    const DeviceScope scope(prepared.sequences.query.device_index);
    const Target target = target_of(x.name, prepared.sequences.query);
    const auto window = static_cast<int>(kda_positions(prepared.sequences));
    KdaWorkspaceSize tables = kda_workspace(prepared, window);
    tables.window = 0;
    const Tensor memory = torch::stable::new_empty(x.out, {ceil_div(tables.bytes(), int64_t{4})}, ScalarType::Float);
    KdaWorkspace workspace = tables.at(memory_of(memory));
    workspace.records = static_cast<KdaRecord*>(View(x.records).data);
    workspace.flags = static_cast<unsigned*>(View(x.flags).data);
    run_kda_chunks(prepared, tensors, workspace, window, target, {x.prepares, x.owns});
}

STABLE_TORCH_LIBRARY_FRAGMENT(gdn_cuda, m) {
    define<KdaChunks, run_chunks>(m);
}
STABLE_TORCH_LIBRARY_IMPL(gdn_cuda, CUDA, m) {
    m.impl(KdaChunks::name, &detail::run_boxed<KdaChunks, run_chunks>);
}

}  // namespace
}  // namespace gdn_cuda::gdn
