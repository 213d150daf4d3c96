// The launches of Kimi Delta Attention by chunks; and an operator that runs one of them or both on the whole call, or the first
// one as the backward does, as tests and benchmarks look at what is between them.
#include "kda_chunks.hpp"

#include <algorithm>
#include <limits>

#include "../../operators/operator.hpp"
#include "by_chunk.hpp"
#include "chunk_inputs.hpp"
#include "kda_segments.hpp"

namespace gdn_cuda::gdn {
namespace {

bool carries_in_final_states(const Prepared& prepared) {
    return prepared.args.last.data != nullptr && prepared.state_type == DType::f32;
}

int window_of(const Prepared& prepared) {
    const int64_t positions = kda_positions(prepared.sequences);
    if (const int wanted = kKdaWindowVariable.value(); wanted > 0)
        return static_cast<int>(std::min<int64_t>(wanted, positions));
    return kda_window(positions, prepared.args.heads);
}

// Chunks that a sequence has in a window, on average, which is the most where they are padded.
int64_t chunks_in_window(const Prepared& prepared, int window) {
    return ceil_div(int64_t{window}, std::max<int64_t>(prepared.sequences.count, 1));
}

KdaSegments segments_of(const Prepared& prepared, const KdaSplit& split) {
    if (split.segment == 0) return {};
    const Sequences& sequences = prepared.sequences;
    const int64_t per_sequence = ceil_div(chunks_in_window(prepared, split.window), int64_t{split.segment}),
                  slots = sequences.packed() ? sequences.tokens / (int64_t{kChunk} * split.segment) + sequences.count
                                             : sequences.count * per_sequence;
    return {.chunks = split.segment,
            .per_sequence = static_cast<int>(per_sequence),
            .slots = static_cast<int>(slots),
            .states = nullptr,
            .follow = false};
}

// A window's chunks, in one launch.
void run_ahead(KdaPrepareArgs& prepare, KdaOwnArgs& own, const KdaWorkspace& workspace, const KdaSplit& split, DType io,
               const Target& target) {
    const GdnCall& call = own.chunked.call;
    own.work_tiles = std::min(call.sequences, own.window.count) * call.heads * own.row_tiles;
    // Flags, and the words after them.
    const size_t words = static_cast<size_t>(workspace.counters + kKdaAheadCounters - workspace.flags);
    jit::clear_words(workspace.flags, words, target.ordinal, target.stream);
    KdaAhead::run(io,
                  {.prepare = prepare,
                   .own = own,
                   .counters = workspace.counters,
                   .preparers = static_cast<int>(split.ahead.preparers),
                   .first_records = static_cast<unsigned>(split.ahead.first_records)},
                  split.ahead, target);
}

// A window's chunks.
void run_owners(KdaOwnArgs& own, DType io, const Target& target) {
    KdaSegments& segments = own.segments;
    segments.follow = false;
    KdaOwn::run(io, own, target);
    if (own.window.count <= segments.chunks || segments.chunks == 0) return;
    if (own.window.count > 2 * segments.chunks) KdaFold::run(own, target);
    segments.follow = true;
    KdaOwn::run(io, own, target);
}

}  // namespace

KdaSplit kda_split(const Prepared& prepared, bool deterministic, const Target& target) {
    const int window = window_of(prepared);
    if (prepared.sequences.count == 0) return {.window = window, .segment = 0, .ahead = {}};
    const GdnCall& call = prepared.args;
    const int64_t chunks = chunks_in_window(prepared, window);
    const KdaSegmentsProblem problem{.sequences = prepared.sequences.count,
                                     .heads = call.heads,
                                     .chunks = chunks,
                                     .row_tiles = ceil_div(call.dv, kValueRows),
                                     .transition_tiles = ceil_div(call.dk, kValueRows),
                                     .multiprocessors = jit::device_traits(target.ordinal).multiprocessors};
    const int wanted = kKdaSegmentsVariable.value();
    int64_t segments = deterministic ? 1 : wanted > 0 ? wanted : kda_segments(problem);
    const auto ahead = static_cast<WantedSwitch>(kKdaAheadVariable.value());
    KdaAheadSplit split{};
    if (ahead != WantedSwitch::never && (wanted <= 1 || segments == 1))
        split = ahead == WantedSwitch::always ? split_kda_ahead(problem) : kda_ahead_split(problem, segments);
    if (split.owners > 0) segments = 1;
    return {.window = window, .segment = segments > 1 ? static_cast<int>(ceil_div(chunks, segments)) : 0, .ahead = split};
}

KdaWorkspaceSize kda_workspace(const Prepared& prepared, const KdaSplit& split) {
    const Sequences& sequences = prepared.sequences;
    const GdnCall& call = prepared.args;
    const int64_t positions = kda_positions(sequences);
    const bool carries = split.window < positions && !carries_in_final_states(prepared);
    return {.window = split.window,
            .positions = sequences.packed() ? positions : 0,
            .carried = carries ? sequences.count * sequences.state_numel() : 0,
            .segments = int64_t{segments_of(prepared, split).slots} * call.heads * (call.dv + call.dk) * call.dk,
            .heads = call.heads};
}

int64_t KdaWorkspaceSize::bytes() const {
    const int64_t records = int64_t{heads} * window;
    return records * sizeof(KdaRecord) + positions * sizeof(KdaChunkPlace) +
           4 * (carried + segments + records + positions + 2 + kKdaAheadCounters);
}

KdaWorkspace KdaWorkspaceSize::at(void* memory) const {
    const int64_t records = int64_t{heads} * window;
    KdaWorkspace parts{};
    parts.records = static_cast<KdaRecord*>(memory);
    float* const states = reinterpret_cast<float*>(parts.records + records);
    if (carried > 0) parts.carried = states;
    parts.segments = states + carried;
    auto* const places = reinterpret_cast<KdaChunkPlace*>(parts.segments + segments);
    if (positions > 0) parts.places = places;
    int* const words = reinterpret_cast<int*>(places + positions);
    if (positions > 0) parts.positions = words;
    parts.flags = reinterpret_cast<unsigned*>(words + positions);
    parts.taken = parts.flags + records;
    parts.counters = parts.taken + 2;
    return parts;
}

bool takes_kda_gates(const Prepared& prepared) {
    const Scalars& gate = prepared.args.gate;
    return has_paired_channel_gates(prepared) &&
           gate.token * bytes_of(gate.values.type) <= std::numeric_limits<unsigned>::max();
}
bool fits_kda_chunks(const Prepared& prepared, const PrefillTensors& tensors) {
    const Sequences& sequences = prepared.sequences;
    return takes_kda_gates(prepared) && sequences.tokens > 0 && prepared.aligned && sequences.plain() &&
           sequences.dk <= kKdaHeadK && jit::can_tile(tensors.query) && jit::can_tile(tensors.key) &&
           jit::can_tile(tensors.value) && jit::can_tile(tensors.output) &&
           kda_positions(sequences) <= std::numeric_limits<int>::max() / kChunk;
}

void run_kda_chunks(const Prepared& prepared, const PrefillTensors& tensors, const KdaWorkspace& workspace,
                    const KdaSplit& split, const Target& target, const KdaLaunches& launches) {
    const GdnCall& call = prepared.args;
    const Sequences& sequences = prepared.sequences;
    if (call.sequences == 0 || call.heads == 0 || call.dv == 0) return;
    const int64_t positions = kda_positions(sequences), window = split.window;
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
                           .flags = workspace.flags,
                           .taken = workspace.taken};
    KdaOwnArgs own{.chunked = {.value = map(tensors.value),
                               .output = map(tensors.output),
                               .call = call,
                               .state = prepared.state_type,
                               .segments = 1,
                               .takes = LaunchTakes::every_call,
                               .step_interval = call.steps.data != nullptr ? Divisor(call.step_interval) : Divisor()},
                   .window = prepare.call.window,
                   .segments = segments_of(prepared, split),
                   .records = workspace.records,
                   .flags = workspace.flags,
                   .carried = workspace.carried,
                   .taken = workspace.taken,
                   .row_tiles = static_cast<int>(ceil_div(call.dv, kValueRows))};
    own.segments.states = workspace.segments;
    for (int64_t first = 0; first < positions; first += window) {
        prepare.call.window.first = own.window.first = static_cast<int>(first);
        prepare.per_head = prepare.call.window.count = own.window.count =
            static_cast<int>(std::min<int64_t>(window, positions - first));
        own.window.is_last = first + window >= positions;
        if (split.ahead.owners > 0) {
            run_ahead(prepare, own, workspace, split, sequences.io, target);
        } else {
            if (launches.prepares)
                KdaPrepare::run(sequences.io, prepare, target);
            else
                jit::clear_words(workspace.taken, 2, target.ordinal, target.stream);
            if (launches.owns) run_owners(own, sequences.io, target);
        }
        if (explaining()) [[unlikely]] {
            remark(fmt::format("{} windows of chunks, each in these launches", ceil_div(positions, window)));
            if (split.ahead.owners > 0) break;
            const KdaSegments& segments = own.segments;
            remark(segments.chunks == 0
                       ? std::string("sequences are not split into segments")
                       : fmt::format("{} segments of a sequence of {} chunks in a window{}, at most {} chunks each",
                                     segments.per_sequence, chunks_in_window(prepared, split.window),
                                     sequences.packed() ? ", which is the mean" : "", segments.chunks));
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
    bool trains = false;     // rather than both: KdaTrainingRecords, without flags
    Written records, flags;  // bytes (heads, records, sizeof(KdaRecord)), and int32 (heads, records)
    OptionalWritten final_state = {};
    Written out;

    GDN_FIELDS(query, key, value, gate, beta, state, cu_seqlens, scale, lower_bound, use_qk_l2norm, gates, prepares, owns,
               trains, records, flags, final_state, out)
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
    const int64_t bytes = x.trains ? sizeof(KdaTrainingRecord) : sizeof(KdaRecord);
    check.shape("records", records, {sequences.heads, count, bytes}, "(heads, records, bytes)");
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
    const int64_t count = kda_positions(prepared.sequences);
    if (x.trains) {
        KdaPrepare::run(prepared.args, {.prepared = View(x.records).data, .chunks = count}, prepared.sequences.io, target);
        return;
    }
    const KdaSplit whole{.window = static_cast<int>(count), .segment = 0, .ahead = {}};
    KdaWorkspaceSize tables = kda_workspace(prepared, whole);
    tables.window = 0;
    const Tensor memory = new_tensor(x.out, {ceil_div(tables.bytes(), int64_t{4})}, ScalarType::Float);
    KdaWorkspace workspace = tables.at(memory_of(memory));
    workspace.records = static_cast<KdaRecord*>(View(x.records).data);
    workspace.flags = static_cast<unsigned*>(View(x.flags).data);
    run_kda_chunks(prepared, tensors, workspace, whole, target, {x.prepares, x.owns});
}

STABLE_TORCH_LIBRARY_FRAGMENT(gdn_cuda, m) {
    define<KdaChunks, run_chunks>(m);
}
STABLE_TORCH_LIBRARY_IMPL(gdn_cuda, CUDA, m) {
    m.impl(KdaChunks::name, &detail::run_boxed<KdaChunks, run_chunks>);
}

}  // namespace
}  // namespace gdn_cuda::gdn
