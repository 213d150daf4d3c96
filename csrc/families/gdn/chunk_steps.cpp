// The chunked form in steps, one kernel each: u and w, the states between chunks, the output.

#include <algorithm>
#include <cmath>
#include <gdn_cuda/gdn.hpp>

#include "../../operators/operator.hpp"
#include "checks.hpp"
#include "compute_o.hpp"
#include "compute_u_w.hpp"
#include "seq_state_update.hpp"

namespace gdn_cuda::gdn {
namespace {

// bf16 (B, T, H, d) or (N, H, d), for the tokens of the call.
void check_rows(const Checks& check, const char* argument, const View& view, const Sequences& s, int64_t heads, int64_t dim) {
    if (s.packed()) {
        check.shape(argument, view, {s.tokens, heads, dim}, "(N, H, d)");
    } else {
        check.shape(argument, view, {s.count, s.tokens, heads, dim}, "(B, T, H, d)");
    }
    check.dtype(argument, view, {DType::bf16});
    check.device(argument, view, s.key, s.names.key);
    check.last_contiguous(argument, view);
}

Scalars check_mn_major(const Checks& check, const char* argument, const View& view, const Sequences& s,
                       std::initializer_list<DType> allowed) {
    const Scalars scalars = check_scalars(check, argument, view, s);
    check.dtype(argument, view, allowed);
    GDN_REQUIRE(check, view.size(-2) <= 1 || view.stride(-2) == 1, argument,
                "contiguous tokens, as transpose_to_mn_major returns them", stride_text(view));
    return scalars;
}

struct PreparedStep {
    Sequences sequences;
    View gate{};
    ChunkStepProblem problem{};
    ChunkArgs args{};

    // Call it for every tensor accessed in 16-byte units.
    void track_alignment(const View& view) { problem.aligned = problem.aligned && view.aligned16(); }
    // The chunks with outputs: those that `state` has room for.
    int64_t chunks() const { return std::min<int64_t>(sequences.chunks_at_most(kChunk), args.state_chunks); }
};

PreparedStep prepare_step(const Checks& check, const Tensor& query_or_key, const Tensor& k, const Tensor& v,
                          const RowNames& names, const OptionalTensor& gate, const OptionalTensor& cu_seqlens) {
    PreparedStep step{.sequences = check_sequences(check, query_or_key, k, v, view_of(cu_seqlens), QueryHeads::fewer, names)};
    const Sequences& s = step.sequences;
    ChunkArgs& args = step.args;
    GDN_REQUIRE(check, !s.unit_batch, "cu_seqlens", fmt::format("None, as {} is padded (rank 4)", names.query), "a tensor");
    for (const auto& [name, rows] : {std::pair{names.query, &s.query}, {names.key, &s.key}, {names.value, &s.value}}) {
        check.dtype(name, *rows, {DType::bf16});
        check.last_contiguous(name, *rows);
        GDN_REQUIRE(check, rows->size(-1) % 8 == 0, name, "a head dimension that is a multiple of 8",
                    fmt::format("{}", rows->size(-1)));
    }
    args.query = rows_of(s.query);
    args.key = rows_of(s.key);
    args.value = rows_of(s.value);
    args.sequences = static_cast<int>(s.count);
    args.tokens = static_cast<int>(s.tokens);
    args.heads = static_cast<int>(s.value_heads);
    args.heads_per_key = static_cast<int>(s.value_heads / s.key_heads);
    args.dk = static_cast<int>(s.dk);
    args.dv = static_cast<int>(s.dv);
    args.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(s.dk)));
    args.cu_seqlens = tagged(s.cu_seqlens);
    step.problem = {.sequences = s.count,
                    .heads = args.heads,
                    .dk = args.dk,
                    .dv = args.dv,
                    .state = DType::f32,
                    .aligned = s.query.aligned16() && s.key.aligned16() && s.value.aligned16()};
    step.gate = view_of(gate);
    if (step.gate.defined()) args.gate = check_mn_major(check, "gate", step.gate, s, {DType::f32});
    return step;
}

// (B, chunks, Hv, dv, dk), or packed (chunks, Hv, dv, dk) with room for the maximum number of chunks.
void set_states(const Checks& check, PreparedStep& step, const View& states) {
    const Sequences& s = step.sequences;
    if (s.packed()) {
        check.rank("state", states, 4, "(chunks, Hv, dv, dk)");
        check.shape("state", states, {states.size(0), s.value_heads, s.dv, s.dk}, "(chunks, Hv, dv, dk)");
        const int64_t fewest = ceil_div(s.tokens, kChunk);
        GDN_REQUIRE(check, states.size(0) >= fewest, "state", fmt::format("at least {} chunks", fewest), shape_text(states));
    } else {
        check.shape("state", states, {s.count, ceil_div(s.tokens, kChunk), s.value_heads, s.dv, s.dk},
                    "(B, chunks, Hv, dv, dk)");
    }
    step.args.states_type = check.dtype("state", states, {DType::f32, DType::bf16});
    check.device("state", states, s.key, "k");
    GDN_REQUIRE(check, states.contiguous_tail(states.rank), "state", "a contiguous tensor", stride_text(states));
    step.args.states = states.data;
    step.problem.state = step.args.states_type;
    step.track_alignment(states);
    step.args.state_chunks = s.packed() ? states.size(0) : s.count * ceil_div(s.tokens, kChunk);
}

PreparedStep prepare_u_w(const ComputeUAndW& x) {
    const Checks check{x.name};
    PreparedStep step = prepare_step(check, x.k, x.k, x.v, {"k", "k", "v"}, x.gate, x.cu_seqlens);
    const Sequences& s = step.sequences;
    const View u(x.u), w(x.w), beta(x.beta);
    check_rows(check, "u", u, s, s.value_heads, s.dv);
    check_rows(check, "w", w, s, s.value_heads, s.dk);
    check.distinct("u", u);
    check.distinct("w", w);
    step.args.output = rows_of(u);
    step.args.w = rows_of(w);
    step.track_alignment(u);
    step.track_alignment(w);
    step.args.beta = check_mn_major(check, "beta", beta, s, {DType::bf16, DType::f16, DType::f32});
    check.apart({{"u", u}, {"w", w}},
                {{"k", s.key}, {"v", s.value}, {"beta", beta}, {"gate", step.gate}, {"cu_seqlens", s.cu_seqlens}});
    check.grid("v", ComputeUW::blocks(step.problem, s.chunks_at_most(kChunk)));
    return step;
}

PreparedStep prepare_state_update(const ChunkedSeqStateUpdate& x) {
    const Checks check{x.name};
    PreparedStep step = prepare_step(check, x.k, x.k, x.u, {"k", "k", "u"}, x.gate, x.cu_seqlens);
    const Sequences& s = step.sequences;
    check.distinct("u", s.value);
    const View w(x.w), states(x.state), last(x.final_state);
    check_rows(check, "w", w, s, s.value_heads, s.dk);
    step.args.w = rows_of(w);
    step.track_alignment(w);
    set_states(check, step, states);
    check.shape("final_state", last, {s.count, s.value_heads, s.dv, s.dk}, "(B, Hv, dv, dk)");
    step.args.final_type = check.dtype("final_state", last, {DType::f32, DType::bf16});
    check.device("final_state", last, s.key, "k");
    GDN_REQUIRE(check, last.contiguous_tail(4), "final_state", "a contiguous tensor", stride_text(last));
    step.args.final_state = last.data;
    step.track_alignment(last);
    step.args.has_initial = x.is_initial_state;
    step.args.has_final = x.output_final_state;
    check.apart({{"u", s.value}, {"state", states}, {"final_state", last}},
                {{"k", s.key}, {"w", w}, {"gate", step.gate}, {"cu_seqlens", s.cu_seqlens}});
    return step;
}

PreparedStep prepare_output(const ChunkedComputeO& x) {
    const Checks check{x.name};
    PreparedStep step = prepare_step(check, x.q, x.k, x.u, {"q", "k", "u"}, x.gate, x.cu_seqlens);
    const Sequences& s = step.sequences;
    const View out(x.o), states(x.state);
    check_rows(check, "o", out, s, s.value_heads, s.dv);
    check.distinct("o", out);
    step.args.output = rows_of(out);
    step.track_alignment(out);
    set_states(check, step, states);
    check.apart(
        {{"o", out}},
        {{"q", s.query}, {"state", states}, {"k", s.key}, {"u", s.value}, {"gate", step.gate}, {"cu_seqlens", s.cu_seqlens}});
    check.grid("u", ComputeO::blocks(step.problem, step.chunks()));
    return step;
}

void run_u_w(const ComputeUAndW& x) {
    const PreparedStep step = prepare_u_w(x);
    const DeviceScope scope(step.sequences.key.device_index);
    ComputeUW::run(step.problem, step.args, step.sequences.chunks_at_most(kChunk), target_of(x.name, step.sequences.key));
}

void run_state_update(const ChunkedSeqStateUpdate& x) {
    const PreparedStep step = prepare_state_update(x);
    const DeviceScope scope(step.sequences.key.device_index);
    SeqStateUpdate::run(step.problem, step.args, target_of(x.name, step.sequences.key));
}

void run_output(const ChunkedComputeO& x) {
    const PreparedStep step = prepare_output(x);
    const DeviceScope scope(step.sequences.key.device_index);
    ComputeO::run(step.problem, step.args, step.chunks(), target_of(x.name, step.sequences.key));
}

GDN_REGISTER(ComputeUAndW, prepare_u_w, run_u_w)
GDN_REGISTER(ChunkedSeqStateUpdate, prepare_state_update, run_state_update)
GDN_REGISTER(ChunkedComputeO, prepare_output, run_output)

}  // namespace
}  // namespace gdn_cuda::gdn

namespace gdn_cuda {

GDN_FUNCTION(bf16_gdn_compute_u_w, ComputeUAndW, gdn::run_u_w)
GDN_FUNCTION(bf16_chunked_seq_state_update, ChunkedSeqStateUpdate, gdn::run_state_update)
GDN_FUNCTION(bf16_gdn_chunked_compute_O, ChunkedComputeO, gdn::run_output)

}  // namespace gdn_cuda
