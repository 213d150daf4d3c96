// Gating, layout and the pieces of the chunked form.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <cmath>
#include <limits>

#include "../jit_kernels/impls/gdn/chunk_cumsum.hpp"
#include "../jit_kernels/impls/gdn/compute_o.hpp"
#include "../jit_kernels/impls/gdn/compute_u_w.hpp"
#include "../jit_kernels/impls/gdn/gating.hpp"
#include "../jit_kernels/impls/gdn/mn_major.hpp"
#include "../jit_kernels/impls/gdn/seq_state_update.hpp"
#include "gdn.hpp"
#include "gdn_checks.hpp"
#include "register.hpp"

namespace gdn_cuda::gdn {
namespace {

using torch::headeronly::ScalarType;

// ---- fused_gdn_gating
// ------------------------------------------------------------------------------------------------------------

struct PreparedGating {
    GatingProblem problem;
    GatingArgs args{};
    View a;
};

PreparedGating prepare_gating(const Tensor& A_log, const Tensor& dt_bias, const Tensor& a, const Tensor& b) {
    const Checks check{"fused_gdn_gating"};
    const View rates(A_log), bias(dt_bias), a_view(a), b_view(b);
    GDN_REQUIRE(check, a_view.rank == 2 || a_view.rank == 3, "a", "(B, T, Hv), or packed (N, Hv)", shape_text(a_view));
    GDN_REQUIRE(check, b_view.rank == a_view.rank && std::equal(b_view.sizes, b_view.sizes + b_view.rank, a_view.sizes), "b",
                "the shape of a " + shape_text(a_view), shape_text(b_view));
    const DType io = check.dtype("a", a_view, {DType::bf16, DType::f16, DType::f32});
    check.dtype("b", b_view, {io});
    const int64_t heads = a_view.size(-1);
    for (const auto& [argument, view] : {std::pair{"A_log", &rates}, std::pair{"dt_bias", &bias}}) {
        check.shape(argument, *view, {heads}, "(Hv,)");
        check.dtype(argument, *view, {DType::f32, DType::bf16, DType::f16});
        check.device(argument, *view, a_view, "a");
        check.last_contiguous(argument, *view);
    }
    check.device("b", b_view, a_view, "a");
    check.last_contiguous("a", a_view);
    check.last_contiguous("b", b_view);
    GDN_REQUIRE(check,
                a_view.numel() / std::max<int64_t>(heads, 1) <= std::numeric_limits<int>::max() &&
                    heads <= std::numeric_limits<int>::max(),
                "a", "fewer than 2^31 tokens and heads", shape_text(a_view));

    const bool packed = a_view.rank == 2;
    PreparedGating prepared{};
    prepared.a = a_view;
    GatingArgs& args = prepared.args;
    args.A_log = tagged(rates);
    args.dt_bias = tagged(bias);
    args.a = a_view.data;
    args.b = b_view.data;
    args.a_batch = packed ? 0 : a_view.stride(0);
    args.b_batch = packed ? 0 : b_view.stride(0);
    args.a_token = a_view.stride(-2);
    args.b_token = b_view.stride(-2);
    args.rows = heads == 0 ? 0 : a_view.numel() / heads;
    args.tokens = static_cast<int>(a_view.size(-2));
    args.heads = static_cast<int>(heads);
    args.one_batch =
        args.rows == args.tokens || (args.a_batch == args.tokens * args.a_token && args.b_batch == args.tokens * args.b_token);
    prepared.problem = {.rows = args.rows, .heads = args.heads, .io = io, .aligned = a_view.aligned16() && b_view.aligned16()};
    return prepared;
}

// ---- transpose_to_mn_major
// -------------------------------------------------------------------------------------------------------

struct PreparedMnMajor {
    View input;
    int64_t padded_rows = 0;
    int element_bytes = 0;
    MnMajorArgs args{};
};

PreparedMnMajor prepare_mn_major(const Tensor& input, int64_t alignment) {
    const Checks check{"transpose_to_mn_major"};
    PreparedMnMajor prepared{.input = View(input)};
    const View& view = prepared.input;
    const int leading = view.rank - 2;
    GDN_REQUIRE(check, leading >= 0 && leading <= MnMajorArgs::kMaxLeading, "input",
                fmt::format("rank 2 to {}", 2 + MnMajorArgs::kMaxLeading), shape_text(view));
    prepared.element_bytes = bytes_of(check.dtype("input", view, {DType::f32, DType::bf16}));
    GDN_REQUIRE(check, alignment > 0 && alignment % prepared.element_bytes == 0, "alignment",
                fmt::format("a positive multiple of the element's {} bytes", prepared.element_bytes),
                fmt::format("{}", alignment));
    const int64_t unit = alignment / prepared.element_bytes;
    prepared.padded_rows = ceil_div(view.size(-2), unit) * unit;
    MnMajorArgs& args = prepared.args;
    args.input = view.data;
    args.leading_dims = leading;
    for (int d = 0; d < leading; ++d) {
        args.leading_size[d] = view.size(d);
        args.leading_stride[d] = view.stride(d);
    }
    args.rows = view.size(-2);
    args.columns = view.size(-1);
    args.padded_rows = prepared.padded_rows;
    args.row_stride = view.stride(-2);
    args.column_stride = view.stride(-1);
    return prepared;
}

// ---- chunk_local_cumsum_bf16
// -----------------------------------------------------------------------------------------------------

struct PreparedCumsum {
    View input;
    DType io;
    int64_t chunks = 0;
    ChunkCumsumArgs args{};
};

PreparedCumsum prepare_cumsum(const Tensor& input, const Tensor& output, int64_t batch_size, int64_t seq_len, int64_t num_heads,
                              bool head_first, const OptionalTensor& cu_seqlens, const OptionalTensor& chunk_indices) {
    const Checks check{"chunk_local_cumsum_bf16"};
    const View in(input), out(output), lengths = view_of(cu_seqlens), hints = view_of(chunk_indices);
    const bool packed = lengths.defined();
    PreparedCumsum prepared{.input = in, .io = check.dtype("input", in, {DType::bf16, DType::f32})};
    int64_t tokens = seq_len;
    if (packed) {
        check.rank("input", in, 2, head_first ? "(H, N)" : "(N, H)");
        tokens = in.size(head_first ? 1 : 0);
        check_cu_seqlens(check, lengths, tokens, in, "input");
        GDN_REQUIRE(check, in.size(head_first ? 0 : 1) == num_heads, "input", fmt::format("{} heads", num_heads),
                    shape_text(in));
        GDN_REQUIRE(check, lengths.size(0) == batch_size + 1, "cu_seqlens",
                    fmt::format("batch_size + 1 = {} elements", batch_size + 1), shape_text(lengths));
    } else if (head_first) {
        check.shape("input", in, {batch_size, num_heads, seq_len}, "(batch_size, num_heads, seq_len)");
    } else {
        check.shape("input", in, {batch_size, seq_len, num_heads}, "(batch_size, seq_len, num_heads)");
    }
    GDN_REQUIRE(check, out.rank == in.rank && std::equal(out.sizes, out.sizes + out.rank, in.sizes), "output",
                "the shape of input " + shape_text(in), shape_text(out));
    check.dtype("output", out, {DType::f32});
    check.device("output", out, in, "input");
    check.distinct("output", out);
    if (hints.defined()) {
        GDN_REQUIRE(check, packed, "chunk_indices", "None without cu_seqlens", "a tensor");
        check.dtype("chunk_indices", hints, {DType::i32, DType::i64});
        check.device("chunk_indices", hints, in, "input");
    }
    GDN_REQUIRE(check, tokens <= std::numeric_limits<int>::max() && batch_size <= std::numeric_limits<int>::max(), "input",
                "fewer than 2^31 tokens and sequences", shape_text(in));

    ChunkCumsumArgs& args = prepared.args;
    const int token = head_first ? -1 : -2, head = head_first ? -2 : -1;
    args.input = in.data;
    args.output = static_cast<float*>(out.data);
    args.in_batch = packed ? 0 : in.stride(0);
    args.in_token = in.stride(token);
    args.in_head = in.stride(head);
    args.out_batch = packed ? 0 : out.stride(0);
    args.out_token = out.stride(token);
    args.out_head = out.stride(head);
    args.sequences = static_cast<int>(batch_size);
    args.tokens = static_cast<int>(tokens);
    args.heads = static_cast<int>(num_heads);
    args.cu_seqlens = tagged(lengths);
    prepared.chunks = packed ? tokens / kChunk + batch_size : batch_size * ceil_div(tokens, kChunk);
    return prepared;
}

// ---- the pieces of the chunked form
// ----------------------------------------------------------------------------------------------

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
    PieceProblem problem{};
    ChunkArgs args{};

    // What is written, or read, in rows of 16 bytes.
    void also_moves(const View& view) { problem.aligned = problem.aligned && view.aligned16(); }
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
    if (const View cumulated = view_of(gate); cumulated.defined())
        args.gate = check_mn_major(check, "gate", cumulated, s, {DType::f32});
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
    check_piece_options(check, compiled_dims, kChunk, view_of(chunk_indices), View(), s);
    const View u_view(u), w_view(w);
    check_rows(check, "u", u_view, s, s.value_heads, s.dv);
    check_rows(check, "w", w_view, s, s.value_heads, s.dk);
    check.distinct("u", u_view);
    check.distinct("w", w_view);
    piece.args.output = rows_of(u_view);
    piece.args.w = rows_of(w_view);
    piece.also_moves(u_view);
    piece.also_moves(w_view);
    piece.args.beta = check_mn_major(check, "beta", View(beta), s, {DType::bf16, DType::f16, DType::f32});
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
    const View w_view(w), last(final_state);
    check_rows(check, "w", w_view, s, s.value_heads, s.dk);
    piece.args.w = rows_of(w_view);
    piece.also_moves(w_view);
    set_states(check, piece, View(state));
    check.shape("final_state", last, {s.count, s.value_heads, s.dv, s.dk}, "(B, Hv, dv, dk)");
    piece.args.final_type = check.dtype("final_state", last, {DType::f32, DType::bf16});
    check.device("final_state", last, s.key, "k");
    GDN_REQUIRE(check, last.contiguous_tail(4), "final_state", "a contiguous tensor",
                fmt::format("strides {}", stride_text(last)));
    piece.args.final_state = last.data;
    piece.also_moves(last);
    piece.args.has_initial = is_initial_state;
    piece.args.has_final = output_final_state;
    return piece;
}

PreparedPiece prepare_output(const Tensor& q, const Tensor& state, const Tensor& k, const Tensor& u, const Tensor& o,
                             const OptionalTensor& gate, const std::string& compiled_dims, const OptionalTensor& cu_seqlens,
                             const OptionalTensor& chunk_indices, const OptionalTensor& cu_chunks, int64_t chunk_size) {
    const Checks check{"bf16_gdn_chunked_compute_O"};
    PreparedPiece piece = prepare_piece(check, q, k, u, {"q", "k", "u"}, gate, cu_seqlens);
    const Sequences& s = piece.sequences;
    check_piece_options(check, compiled_dims, chunk_size, view_of(chunk_indices), view_of(cu_chunks), s);
    const View out(o);
    check_rows(check, "o", out, s, s.value_heads, s.dv);
    check.distinct("o", out);
    piece.args.output = rows_of(out);
    piece.also_moves(out);
    set_states(check, piece, View(state));
    return piece;
}

}  // namespace

std::tuple<Tensor, Tensor> fused_gdn_gating(const Tensor& A_log, const Tensor& dt_bias, const Tensor& a, const Tensor& b) {
    PreparedGating prepared = prepare_gating(A_log, dt_bias, a, b);
    const std::span<const int64_t> shape(prepared.a.sizes, static_cast<size_t>(prepared.a.rank));
    const torch::headeronly::IntHeaderOnlyArrayRef sizes(shape.data(), shape.size());
    const Tensor beta = torch::stable::new_empty(b, sizes), gate = torch::stable::new_empty(a, sizes, ScalarType::Float);
    prepared.args.beta = beta.data_ptr();
    prepared.args.gate = static_cast<float*>(gate.data_ptr());
    const DeviceScope scope(prepared.a.device_index);
    Gating::run(prepared.problem, prepared.args, target_of("fused_gdn_gating", prepared.a));
    return {beta, gate};
}

Tensor transpose_to_mn_major(const Tensor& input, int64_t alignment) {
    PreparedMnMajor prepared = prepare_mn_major(input, alignment);
    const View& view = prepared.input;
    std::vector<int64_t> shape(view.sizes, view.sizes + view.rank - 2);
    int64_t matrices = 1;
    for (const int64_t size : shape) matrices *= size;
    shape.insert(shape.end(), {view.size(-1), prepared.padded_rows});
    Tensor columns = torch::stable::new_empty(input, shape);
    prepared.args.output = columns.data_ptr();
    const DeviceScope scope(view.device_index);
    MnMajor::run(prepared.element_bytes, prepared.args, matrices, target_of("transpose_to_mn_major", view));
    return torch::stable::transpose(torch::stable::narrow(columns, -1, 0, view.size(-2)), -1, -2);
}

void chunk_local_cumsum_bf16(const Tensor& input, const Tensor& output, int64_t batch_size, int64_t seq_len, int64_t num_heads,
                             bool head_first, const OptionalTensor& cu_seqlens, const OptionalTensor& chunk_indices) {
    const PreparedCumsum prepared =
        prepare_cumsum(input, output, batch_size, seq_len, num_heads, head_first, cu_seqlens, chunk_indices);
    const DeviceScope scope(prepared.input.device_index);
    ChunkCumsum::run(prepared.io, prepared.args, prepared.chunks, target_of("chunk_local_cumsum_bf16", prepared.input));
}

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
    ComputeO::run(piece.problem, piece.args, std::min<int64_t>(piece.sequences.chunks_at_most(kChunk), piece.args.state_chunks),
                  target_of("bf16_gdn_chunked_compute_O", piece.sequences.key));
}

STABLE_TORCH_LIBRARY_FRAGMENT(gdn_cuda, m) {
    define_checked(m, "fused_gdn_gating", "Tensor A_log, Tensor dt_bias, Tensor a, Tensor b", "(Tensor, Tensor)");
    define_checked(m, "transpose_to_mn_major", "Tensor input, int alignment", "Tensor");
    define_checked(
        m, "chunk_local_cumsum_bf16",
        "Tensor input, Tensor(a!) output, int batch_size, int seq_len, int num_heads, bool head_first, Tensor? cu_seqlens, "
        "Tensor? chunk_indices",
        "()");
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
    m.impl("fused_gdn_gating", TORCH_BOX(&fused_gdn_gating));
    m.impl("transpose_to_mn_major", TORCH_BOX(&transpose_to_mn_major));
    m.impl("chunk_local_cumsum_bf16", TORCH_BOX(&chunk_local_cumsum_bf16));
    m.impl("bf16_gdn_compute_u_w", TORCH_BOX(&bf16_gdn_compute_u_w));
    m.impl("bf16_chunked_seq_state_update", TORCH_BOX(&bf16_chunked_seq_state_update));
    m.impl("bf16_gdn_chunked_compute_O", TORCH_BOX(&bf16_gdn_chunked_compute_O));
}

STABLE_TORCH_LIBRARY_IMPL(gdn_cuda, CPU, m) {
    m.impl("validate_fused_gdn_gating", TORCH_BOX(&OnlyCheck<prepare_gating>::run));
    m.impl("validate_transpose_to_mn_major", TORCH_BOX(&OnlyCheck<prepare_mn_major>::run));
    m.impl("validate_chunk_local_cumsum_bf16", TORCH_BOX(&OnlyCheck<prepare_cumsum>::run));
    m.impl("validate_bf16_gdn_compute_u_w", TORCH_BOX(&OnlyCheck<prepare_u_w>::run));
    m.impl("validate_bf16_chunked_seq_state_update", TORCH_BOX(&OnlyCheck<prepare_state_update>::run));
    m.impl("validate_bf16_gdn_chunked_compute_O", TORCH_BOX(&OnlyCheck<prepare_output>::run));
}

}  // namespace gdn_cuda::gdn
