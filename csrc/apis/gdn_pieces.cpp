// The pieces of the chunked form: u and w, the states between chunks, the output.
#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <cmath>

#include "../jit_kernels/impls/gdn/compute_o.hpp"
#include "../jit_kernels/impls/gdn/compute_u_w.hpp"
#include "../jit_kernels/impls/gdn/seq_state_update.hpp"
#include "gdn.hpp"
#include "gdn_checks.hpp"
#include "register.hpp"

namespace gdn_cuda::gdn {
namespace {

// bf16 (B, T, H, d) or (N, H, d), of the call's tokens.
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
    const Scalars scalars = check_scalars(check, argument, view, s, allowed);
    GDN_REQUIRE(check, view.size(-2) <= 1 || view.stride(-2) == 1, argument, "tokens contiguous (transpose_to_mn_major)",
                fmt::format("strides {}", stride_text(view)));
    return scalars;
}

void check_piece_options(const Checks& check, const std::string& compiled_dims, int64_t chunk_size, const View& chunk_indices,
                         const View& cu_chunks, const Sequences& s) {
    GDN_REQUIRE(check, compiled_dims.find_first_not_of("bthkvd") == std::string::npos, "compiled_dims",
                "letters among b, t, h, k, v, d", "'" + compiled_dims + "'");
    GDN_REQUIRE(check, chunk_size == kChunk, "chunk_size", fmt::format("{}", kChunk), fmt::format("{}", chunk_size));
    check_chunk_hints(check, chunk_indices, cu_chunks, s);
}

struct PreparedPiece {
    Sequences sequences;
    View gate{};
    PieceProblem problem{};
    ChunkArgs args{};

    // What is written, or read, in rows of 16 bytes.
    void also_moves(const View& view) { problem.aligned = problem.aligned && view.aligned16(); }
    // That have outputs: those that `state` has room for.
    int64_t chunks() const { return std::min<int64_t>(sequences.chunks_at_most(kChunk), args.state_chunks); }
};

PreparedPiece prepare_piece(const Checks& check, const Tensor& query_or_key, const Tensor& k, const Tensor& v,
                            const RowNames& names, const OptionalTensor& gate, const OptionalTensor& cu_seqlens) {
    PreparedPiece piece{.sequences = check_sequences(check, query_or_key, k, v, view_of(cu_seqlens), names)};
    const Sequences& s = piece.sequences;
    ChunkArgs& args = piece.args;
    check.dtype(names.query, s.query, {DType::bf16});
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
    piece.problem = {.sequences = s.count,
                     .heads = args.heads,
                     .dk = args.dk,
                     .dv = args.dv,
                     .state = DType::f32,
                     .aligned = s.query.aligned16() && s.key.aligned16() && s.value.aligned16()};
    piece.gate = view_of(gate);
    if (piece.gate.defined()) args.gate = check_mn_major(check, "gate", piece.gate, s, {DType::f32});
    return piece;
}

// (B, chunks, Hv, dv, dk), or packed (chunks, Hv, dv, dk) with room for every chunk there can be.
void set_states(const Checks& check, PreparedPiece& piece, const View& states) {
    const Sequences& s = piece.sequences;
    if (s.packed()) {
        check.rank("state", states, 4, "(chunks, Hv, dv, dk)");
        check.shape("state", states, {states.size(0), s.value_heads, s.dv, s.dk}, "(chunks, Hv, dv, dk)");
        const int64_t fewest = ceil_div(s.tokens, kChunk);
        GDN_REQUIRE(check, states.size(0) >= fewest, "state", fmt::format("at least {} chunks", fewest), shape_text(states));
    } else {
        check.shape("state", states, {s.count, ceil_div(s.tokens, kChunk), s.value_heads, s.dv, s.dk},
                    "(B, chunks, Hv, dv, dk)");
    }
    piece.args.states_type = check.dtype("state", states, {DType::f32, DType::bf16});
    check.device("state", states, s.key, "k");
    GDN_REQUIRE(check, states.contiguous_tail(states.rank), "state", "a contiguous tensor",
                fmt::format("strides {}", stride_text(states)));
    piece.args.states = states.data;
    piece.problem.state = piece.args.states_type;
    piece.also_moves(states);
    piece.args.state_chunks = s.packed() ? states.size(0) : s.count * ceil_div(s.tokens, kChunk);
}

PreparedPiece prepare_u_w(const Tensor& k, const Tensor& v, const Tensor& u, const Tensor& w, const Tensor& beta,
                          const OptionalTensor& gate, const std::string& compiled_dims, const OptionalTensor& cu_seqlens,
                          const OptionalTensor& chunk_indices) {
    const Checks check{"bf16_gdn_compute_u_w"};
    PreparedPiece piece = prepare_piece(check, k, k, v, {"k", "k", "v"}, gate, cu_seqlens);
    const Sequences& s = piece.sequences;
    const View u_view(u), w_view(w), beta_view(beta), hints = view_of(chunk_indices);
    check_piece_options(check, compiled_dims, kChunk, hints, View(), s);
    check_rows(check, "u", u_view, s, s.value_heads, s.dv);
    check_rows(check, "w", w_view, s, s.value_heads, s.dk);
    check.distinct("u", u_view);
    check.distinct("w", w_view);
    piece.args.output = rows_of(u_view);
    piece.args.w = rows_of(w_view);
    piece.also_moves(u_view);
    piece.also_moves(w_view);
    piece.args.beta = check_mn_major(check, "beta", beta_view, s, {DType::bf16, DType::f16, DType::f32});
    check.apart({{"u", u_view}, {"w", w_view}}, {{"k", s.key},
                                                 {"v", s.value},
                                                 {"beta", beta_view},
                                                 {"gate", piece.gate},
                                                 {"cu_seqlens", s.cu_seqlens},
                                                 {"chunk_indices", hints}});
    check.grid("v", ComputeUW::blocks(piece.problem, s.chunks_at_most(kChunk)));
    return piece;
}

PreparedPiece prepare_state_update(const Tensor& k, const Tensor& u, const Tensor& w, const Tensor& state,
                                   const Tensor& final_state, const OptionalTensor& gate, bool is_initial_state,
                                   bool output_final_state, const std::string& compiled_dims, const OptionalTensor& cu_seqlens,
                                   int64_t chunk_size) {
    const Checks check{"bf16_chunked_seq_state_update"};
    PreparedPiece piece = prepare_piece(check, k, k, u, {"k", "k", "u"}, gate, cu_seqlens);
    const Sequences& s = piece.sequences;
    check_piece_options(check, compiled_dims, chunk_size, View(), View(), s);
    check.distinct("u", s.value);
    const View w_view(w), states(state), last(final_state);
    check_rows(check, "w", w_view, s, s.value_heads, s.dk);
    piece.args.w = rows_of(w_view);
    piece.also_moves(w_view);
    set_states(check, piece, states);
    check.shape("final_state", last, {s.count, s.value_heads, s.dv, s.dk}, "(B, Hv, dv, dk)");
    piece.args.final_type = check.dtype("final_state", last, {DType::f32, DType::bf16});
    check.device("final_state", last, s.key, "k");
    GDN_REQUIRE(check, last.contiguous_tail(4), "final_state", "a contiguous tensor",
                fmt::format("strides {}", stride_text(last)));
    piece.args.final_state = last.data;
    piece.also_moves(last);
    piece.args.has_initial = is_initial_state;
    piece.args.has_final = output_final_state;
    check.apart({{"u", s.value}, {"state", states}, {"final_state", last}},
                {{"k", s.key}, {"w", w_view}, {"gate", piece.gate}, {"cu_seqlens", s.cu_seqlens}});
    return piece;
}

PreparedPiece prepare_output(const Tensor& q, const Tensor& state, const Tensor& k, const Tensor& u, const Tensor& o,
                             const OptionalTensor& gate, const std::string& compiled_dims, const OptionalTensor& cu_seqlens,
                             const OptionalTensor& chunk_indices, const OptionalTensor& cu_chunks, int64_t chunk_size) {
    const Checks check{"bf16_gdn_chunked_compute_O"};
    PreparedPiece piece = prepare_piece(check, q, k, u, {"q", "k", "u"}, gate, cu_seqlens);
    const Sequences& s = piece.sequences;
    const View out(o), states(state), hints = view_of(chunk_indices), counts = view_of(cu_chunks);
    check_piece_options(check, compiled_dims, chunk_size, hints, counts, s);
    check_rows(check, "o", out, s, s.value_heads, s.dv);
    check.distinct("o", out);
    piece.args.output = rows_of(out);
    piece.also_moves(out);
    set_states(check, piece, states);
    check.apart({{"o", out}}, {{"q", s.query},
                               {"state", states},
                               {"k", s.key},
                               {"u", s.value},
                               {"gate", piece.gate},
                               {"cu_seqlens", s.cu_seqlens},
                               {"chunk_indices", hints},
                               {"cu_chunks", counts}});
    check.grid("u", ComputeO::blocks(piece.problem, piece.chunks()));
    return piece;
}

}  // namespace

void bf16_gdn_compute_u_w(const Tensor& k, const Tensor& v, const Tensor& u, const Tensor& w, const Tensor& beta,
                          const OptionalTensor& gate, const std::string& compiled_dims, const OptionalTensor& cu_seqlens,
                          const OptionalTensor& chunk_indices) {
    const PreparedPiece piece = prepare_u_w(k, v, u, w, beta, gate, compiled_dims, cu_seqlens, chunk_indices);
    const DeviceScope scope(piece.sequences.key.device_index);
    ComputeUW::run(piece.problem, piece.args, piece.sequences.chunks_at_most(kChunk),
                   target_of("bf16_gdn_compute_u_w", piece.sequences.key));
}

void bf16_chunked_seq_state_update(const Tensor& k, const Tensor& u, const Tensor& w, const Tensor& state,
                                   const Tensor& final_state, const OptionalTensor& gate, bool is_initial_state,
                                   bool output_final_state, const std::string& compiled_dims, const OptionalTensor& cu_seqlens,
                                   int64_t chunk_size) {
    const PreparedPiece piece = prepare_state_update(k, u, w, state, final_state, gate, is_initial_state, output_final_state,
                                                     compiled_dims, cu_seqlens, chunk_size);
    const DeviceScope scope(piece.sequences.key.device_index);
    SeqStateUpdate::run(piece.problem, piece.args, target_of("bf16_chunked_seq_state_update", piece.sequences.key));
}

void bf16_gdn_chunked_compute_O(const Tensor& q, const Tensor& state, const Tensor& k, const Tensor& u, const Tensor& o,
                                const OptionalTensor& gate, const std::string& compiled_dims, const OptionalTensor& cu_seqlens,
                                const OptionalTensor& chunk_indices, const OptionalTensor& cu_chunks, int64_t chunk_size) {
    const PreparedPiece piece =
        prepare_output(q, state, k, u, o, gate, compiled_dims, cu_seqlens, chunk_indices, cu_chunks, chunk_size);
    const DeviceScope scope(piece.sequences.key.device_index);
    ComputeO::run(piece.problem, piece.args, piece.chunks(), target_of("bf16_gdn_chunked_compute_O", piece.sequences.key));
}

STABLE_TORCH_LIBRARY_FRAGMENT(gdn_cuda, m) {
    define_checked(
        m, "bf16_gdn_compute_u_w",
        "Tensor k, Tensor v, Tensor(a!) u, Tensor(b!) w, Tensor beta, Tensor? gate, str compiled_dims, Tensor? cu_seqlens, "
        "Tensor? chunk_indices",
        "()");
    define_checked(
        m, "bf16_chunked_seq_state_update",
        "Tensor k, Tensor(a!) u, Tensor w, Tensor(b!) state, Tensor(c!) final_state, Tensor? gate, bool is_initial_state, "
        "bool output_final_state, str compiled_dims, Tensor? cu_seqlens, int chunk_size",
        "()");
    define_checked(
        m, "bf16_gdn_chunked_compute_O",
        "Tensor q, Tensor state, Tensor k, Tensor u, Tensor(a!) o, Tensor? gate, str compiled_dims, Tensor? cu_seqlens, "
        "Tensor? chunk_indices, Tensor? cu_chunks, int chunk_size",
        "()");
}

STABLE_TORCH_LIBRARY_IMPL(gdn_cuda, CUDA, m) {
    m.impl("bf16_gdn_compute_u_w", TORCH_BOX(&bf16_gdn_compute_u_w));
    m.impl("bf16_chunked_seq_state_update", TORCH_BOX(&bf16_chunked_seq_state_update));
    m.impl("bf16_gdn_chunked_compute_O", TORCH_BOX(&bf16_gdn_chunked_compute_O));
}

STABLE_TORCH_LIBRARY_IMPL(gdn_cuda, CPU, m) {
    m.impl("validate_bf16_gdn_compute_u_w", TORCH_BOX(&OnlyCheck<prepare_u_w>::run));
    m.impl("validate_bf16_chunked_seq_state_update", TORCH_BOX(&OnlyCheck<prepare_state_update>::run));
    m.impl("validate_bf16_gdn_chunked_compute_O", TORCH_BOX(&OnlyCheck<prepare_output>::run));
}

}  // namespace gdn_cuda::gdn
