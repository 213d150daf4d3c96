// chunked_summary: what a part of a sequence does to the state before it, by gdn/summary where Hopper's tensor cores take the
// call and each head has a gate. Elsewhere, and with a gate for every channel of the key, a state of dv + dk rows runs through
// the part: the first dv rows begin as the state before it, or zeros, and become L; the others begin as the identity, have
// values of zero, and become M.
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <gdn_cuda/gdn.hpp>
#include <vector>

#include "../../operators/operator.hpp"
#include "by_chunk.hpp"
#include "chunk_inputs.hpp"
#include "move_states.hpp"
#include "summary_passes.hpp"

namespace gdn_cuda::gdn {
namespace {

// Whatever is wrong with the arguments is for the checks to refuse.
std::vector<int64_t> summary_sizes(const Tensor& key, const Tensor& value, const OptionalTensor& cu_seqlens, bool transition) {
    if (key.dim() < 2 || value.dim() < 2 || (cu_seqlens && cu_seqlens->dim() != 1)) return {0};
    const int64_t sequences = cu_seqlens ? std::max<int64_t>(cu_seqlens->size(0) - 1, 0) : key.size(0), dk = key.size(-1);
    return {sequences, value.size(-2), value.size(-1) + (transition ? dk : 0), dk};
}

Prepared prepare_summary(const ChunkedSummary& x) {
    const Checks check{x.name};
    const Sequences sequences =
        check_sequences(check, x.key, x.key, x.value, view_of(x.cu_seqlens), QueryHeads::fewer, {.query = "key"});
    Prepared prepared = prepare_states(sequences, x.use_qk_l2norm);
    const GateTensors gates = check_gates(check, prepared, x.beta, x.gate, x.gates, x.bound);
    const int64_t rows = sequences.dv + (x.transition ? sequences.dk : 0), heads = sequences.heads, head = rows * sequences.dk;
    const DType states = sequences.io == DType::f64 ? DType::f64 : DType::f32;
    const View state = view_of(x.state), out(x.out);
    if (state.defined()) {
        check.shape("state", state, {sequences.count, heads, sequences.dv, sequences.dk}, "(sequences, Hv, dv, dk)");
        check.dtype("state", state, {states});
        check.device("state", state, sequences.key, "key");
        GDN_REQUIRE(check, state.contiguous_tail(4), "state", "a contiguous tensor", "strides that are not");
    }
    check.shape("out", out, {sequences.count, heads, rows, sequences.dk},
                x.transition ? "(sequences, Hv, dv + dk, dk)" : "(sequences, Hv, dv, dk)");
    check.dtype("out", out, {states});
    check.device("out", out, sequences.key, "key");
    GDN_REQUIRE(check, out.contiguous_tail(4), "out", "a contiguous tensor", "strides that are not");
    check_apart(check, sequences, gates, {{"out", out}}, {{"state", state}});
    GdnCall& args = prepared.args;
    args.dv = static_cast<int>(rows);
    args.initial = args.last = {
        .data = out.data, .slot = heads * head, .head = head, .row = sequences.dk, .column = 1, .type = DType::f32};
    prepared.aligned_states = out.aligned16() && (!state.defined() || state.aligned16());
    prepared.aligned = prepared.aligned && prepared.aligned_states;
    return prepared;
}

// In place: `out` begins as the state and the identity, and goes through the part as a state of all its rows.
void run_as_states(const ChunkedSummary& x, Prepared& prepared, ChunkInputs& inputs, const Target& target) {
    const Sequences& sequences = prepared.sequences;
    MoveStates::run(StatesMove::identity,
                    {.call = prepared.args, .from = {}, .to = prepared.args.last, .rows = sequences.count}, target);
    if (x.state) {
        Tensor out = x.out;
        Tensor additions = torch::stable::narrow(out, 2, 0, sequences.dv);
        torch::stable::copy_(additions, *x.state);
    }
    if (sequences.plain())
        run_by_chunk(prepared, inputs, true, x.out, x.name, target);
    else
        run_by_token(prepared, x.name);
}

// Tails in segments, by gdn/summary.
void run_on_hopper(const ChunkedSummary& x, const Prepared& prepared, const PrefillTensors& tensors, const Target& target) {
    const Sequences& sequences = prepared.sequences;
    GdnCall call = prepared.args;
    call.dv = static_cast<int>(sequences.dv);
    call.initial = x.state ? contiguous_states(memory_of(*x.state), sequences, DType::f32) : RecurrentStates{};
    const SummaryPasses passes{
        .call = call, .io = sequences.io, .packed_tokens = sequences.packed() ? sequences.tokens : 0, .backward = false};
    if (passes.pairs() == 0 || call.dk == 0) return;
    const FoundSegments found = passes.find(x.out, target);
    const SummaryConfig config{.head_k = chunked_config(call.dk, 2, sequences.io).head_k, .io = sequences.io};
    const i64 tile = config.block().rows_per_block(), value_tiles = ceil_div(i64{call.dv}, tile);
    const auto map = [&](const jit::TiledTensor& tensor) {
        return jit::tile_map(tensor, sequences.io, kChunk, target.ordinal);
    };
    SummaryArgs args{.chunked = {}, .listed = found.with(value_tiles, x.transition)};
    ChunkedArgs& chunked = args.chunked;
    chunked.query = chunked.key = map(tensors.key);
    chunked.value = chunked.output = map(tensors.value);
    chunked.call = call;
    chunked.state = DType::f32;
    chunked.segments = 1;
    chunked.takes = LaunchTakes::every_call;
    launch<Summary>(config, args, {found.listed, value_tiles + ceil_div(i64{call.dk}, tile), 1}, target, [&](const auto& on) {
        return fmt::format("{} rows of L or M a block, for {} multiprocessors", tile, on.multiprocessors);
    });
    passes.fold(found, x.transition, target);
}

void run_summary(const ChunkedSummary& x) {
    Prepared prepared = prepare_summary(x);
    const Sequences& sequences = prepared.sequences;
    const DeviceScope scope(sequences.key.device_index);
    const Target target = target_of(x.name, sequences.key);
    ChunkInputs inputs(prepared, x.out, target);
    inputs.close_gaps(x.key, x.key, x.value);
    inputs.fit_channel_gates(x.gate);
    const PrefillTensors tensors = tensors_of(prepared);
    const KernelChoice choice = choose_kernel(prepared, tensors, target);
    if (!sequences.plain() || choice.kernel != PrefillKernel::wgmma) return run_as_states(x, prepared, inputs, target);
    if (target.is_explained()) [[unlikely]]
        remark(choice.why);
    if (!has_chunk_gates(prepared.args)) inputs.convert_gates();
    run_on_hopper(x, prepared, tensors, target);
}

GDN_REGISTER(ChunkedSummary, prepare_summary, run_summary)

}  // namespace
}  // namespace gdn_cuda::gdn

namespace gdn_cuda {

Tensor chunked_summary(const ChunkedSummary& given) {
    return into_out<ChunkedSummary, gdn::run_summary>(given, [](ChunkedSummary x) {
        const bool is_double = x.key->scalar_type() == ScalarType::Double;
        x.out.emplace(new_tensor(x.key, gdn::summary_sizes(x.key, x.value, x.cu_seqlens, x.transition),
                                 is_double ? ScalarType::Double : ScalarType::Float));
        return x;
    });
}

}  // namespace gdn_cuda
