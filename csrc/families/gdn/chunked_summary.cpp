// chunked_summary: what a part of a sequence does to the state before it. A state of dv + dk rows runs through the part: the
// first dv rows begin as zeros and become L; the others begin as the identity, have values of zero, and become M.
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <gdn_cuda/gdn.hpp>
#include <vector>

#include "../../operators/operator.hpp"
#include "chunk_inputs.hpp"
#include "move_states.hpp"

namespace gdn_cuda::gdn {
namespace {

// Whatever is wrong with the arguments is for the checks to refuse.
std::vector<int64_t> summary_sizes(const Tensor& key, const Tensor& value, const OptionalTensor& cu_seqlens) {
    if (key.dim() < 2 || value.dim() < 2 || (cu_seqlens && cu_seqlens->dim() != 1)) return {0};
    const int64_t sequences = cu_seqlens ? std::max<int64_t>(cu_seqlens->size(0) - 1, 0) : key.size(0), dk = key.size(-1);
    return {sequences, value.size(-2), value.size(-1) + dk, dk};
}

Prepared prepare_summary(const ChunkedSummary& x) {
    const Checks check{x.name};
    const Sequences sequences =
        check_sequences(check, x.key, x.key, x.value, view_of(x.cu_seqlens), QueryHeads::fewer, {.query = "key"});
    Prepared prepared = prepare_states(sequences, x.use_qk_l2norm);
    const GateTensors gates = check_gates(check, prepared, x.beta, x.gate, x.gates);
    const View out(x.out);
    const int64_t rows = sequences.dv + sequences.dk, heads = sequences.heads, head = rows * sequences.dk;
    check.shape("out", out, {sequences.count, heads, rows, sequences.dk}, "(sequences, Hv, dv + dk, dk)");
    check.dtype("out", out, {sequences.io == DType::f64 ? DType::f64 : DType::f32});
    check.device("out", out, sequences.key, "key");
    GDN_REQUIRE(check, out.contiguous_tail(4), "out", "a contiguous tensor", "strides that are not");
    check_apart(check, sequences, gates, {{"out", out}});
    GdnCall& args = prepared.args;
    args.dv = static_cast<int>(rows);
    args.initial = args.last = {
        .data = out.data, .slot = heads * head, .head = head, .row = sequences.dk, .column = 1, .type = DType::f32};
    prepared.aligned_states = out.aligned16();
    prepared.aligned = prepared.aligned && prepared.aligned_states;
    return prepared;
}

void run_summary(const ChunkedSummary& x) {
    Prepared prepared = prepare_summary(x);
    const Sequences& sequences = prepared.sequences;
    const DeviceScope scope(sequences.key.device_index);
    const Target target = target_of(x.name, sequences.key);
    MoveStates::run(StatesMove::identity,
                    {.call = prepared.args, .from = {}, .to = prepared.args.last, .rows = sequences.count}, target);
    ChunkInputs inputs(prepared, x.out, target);
    inputs.close_gaps(x.key, x.key, x.value);
    if (sequences.plain())
        run_by_chunk(prepared, inputs, true, x.out, x.name, target);
    else
        run_by_token(prepared, x.name);
}

GDN_REGISTER(ChunkedSummary, prepare_summary, run_summary)

}  // namespace
}  // namespace gdn_cuda::gdn

namespace gdn_cuda {

Tensor chunked_summary(const ChunkedSummary& given) {
    return into_out<ChunkedSummary, gdn::run_summary>(given, [](ChunkedSummary x) {
        const bool is_double = x.key->scalar_type() == ScalarType::Double;
        x.out.emplace(torch::stable::new_empty(x.key, gdn::summary_sizes(x.key, x.value, x.cu_seqlens),
                                               is_double ? ScalarType::Double : ScalarType::Float));
        return x;
    });
}

}  // namespace gdn_cuda
