#include "gdn_checks.hpp"

#include <limits>

namespace gdn_cuda::gdn {
namespace {

void check_head_dim(const Checks& check, const char* argument, int64_t dim) {
    check.require(dim >= 8 && dim <= kMaxHeadDim && dim % 8 == 0, argument,
                  fmt::format("a head dimension that is a multiple of 8 up to {}", kMaxHeadDim), fmt::format("{}", dim));
}

}  // namespace

std::string stride_text(const View& view) {
    std::string text;
    for (int d = 0; d < view.rank; ++d) text += fmt::format("{}{}", d ? ", " : "(", view.strides[d]);
    return text + ")";
}

void check_cu_seqlens(const Checks& check, const View& cu_seqlens, const View& as, const char* as_name) {
    check.rank("cu_seqlens", cu_seqlens, 1, "(sequences + 1,)");
    check.dtype("cu_seqlens", cu_seqlens, {DType::i32, DType::i64});
    check.device("cu_seqlens", cu_seqlens, as, as_name);
    check.require(cu_seqlens.size(0) >= 1, "cu_seqlens", "at least one element", "none");
    check.last_contiguous("cu_seqlens", cu_seqlens);
}

Sequences check_sequences(const Checks& check, const Tensor& query, const Tensor& key, const Tensor& value, const View& cu_seqlens) {
    Sequences s{.query = View(query), .key = View(key), .value = View(value), .cu_seqlens = cu_seqlens};
    const View &q = s.query, &k = s.key, &v = s.value;
    check.require(q.rank == 3 || q.rank == 4, "query", "rank 4 (B, T, Hk, dk), or rank 3 (N, Hk, dk) with cu_seqlens", shape_text(q));
    check.require((q.rank == 3) == cu_seqlens.defined(), "cu_seqlens",
                  q.rank == 3 ? "a tensor, as query is packed (rank 3)" : "None, as query is padded (rank 4)",
                  q.rank == 3 ? "None" : "a tensor");
    check.rank("key", k, q.rank, "to match query");
    check.rank("value", v, q.rank, "to match query");
    check.require(std::equal(k.sizes, k.sizes + k.rank, q.sizes), "key", "the shape of query " + shape_text(q), shape_text(k));
    if (!std::equal(v.sizes, v.sizes + v.rank - 2, q.sizes))
        fail(check.function, "value",
             q.rank == 3 ? fmt::format("(N={}, Hv, dv) to match query {}", q.size(0), shape_text(q))
                         : fmt::format("(B={}, T={}, Hv, dv) to match query {}", q.size(0), q.size(1), shape_text(q)),
             shape_text(v));

    s.io = check.dtype("query", q, {DType::bf16, DType::f16});
    check.dtype("key", k, {s.io});
    check.dtype("value", v, {s.io});
    check.require(q.is_cuda() || dtype_of(q).has_value(), "query", "a CUDA or CPU tensor", "another device");
    check.device("key", k, q, "query");
    check.device("value", v, q, "query");
    check.last_contiguous("query", q);
    check.last_contiguous("key", k);
    check.last_contiguous("value", v);

    s.key_heads = q.size(-2);
    s.value_heads = v.size(-2);
    s.dk = q.size(-1);
    s.dv = v.size(-1);
    check.require(s.key_heads >= 1, "query", "at least one head", shape_text(q));
    check.require(s.value_heads >= 1 && s.value_heads % s.key_heads == 0, "value",
                  fmt::format("a number of heads that is a multiple of query's {}", s.key_heads), fmt::format("{}", s.value_heads));
    check.require(s.value_heads <= 65535, "value", "at most 65535 heads", fmt::format("{}", s.value_heads));
    check_head_dim(check, "query", s.dk);
    check_head_dim(check, "value", s.dv);
    if (cu_seqlens.defined()) {
        check_cu_seqlens(check, cu_seqlens, q, "query");
        s.count = cu_seqlens.size(0) - 1;
        s.tokens = q.size(0);
    } else {
        s.count = q.size(0);
        s.tokens = q.size(1);
    }
    check.require(s.tokens <= std::numeric_limits<int>::max() && s.count <= std::numeric_limits<int>::max(), "query",
                  "fewer than 2^31 tokens and sequences", shape_text(q));
    return s;
}

Scalars check_scalars(const Checks& check, const char* argument, const View& view, const Sequences& s,
                      std::initializer_list<DType> allowed) {
    if (s.packed()) {
        check.shape(argument, view, {s.tokens, s.value_heads}, "(N, Hv)");
    } else {
        check.shape(argument, view, {s.count, s.tokens, s.value_heads}, "(B, T, Hv)");
    }
    check.dtype(argument, view, allowed);
    check.device(argument, view, s.query, "query");
    return scalars_of(view);
}

void check_gates(const Checks& check, const Tensor& beta, const Tensor& gate, const Sequences& sequences, Scalars& beta_out,
                 Scalars& gate_out) {
    beta_out = check_scalars(check, "beta", View(beta), sequences, {DType::bf16, DType::f16, DType::f32});
    gate_out = check_scalars(check, "gate", View(gate), sequences, {DType::f32, DType::bf16});
}

Tagged check_per_head(const Checks& check, const char* argument, const View& view, const Sequences& s) {
    check.shape(argument, view, {s.value_heads}, "(Hv,)");
    check.dtype(argument, view, {DType::f32, DType::bf16, DType::f16});
    check.device(argument, view, s.query, "query");
    check.last_contiguous(argument, view);
    return tagged(view);
}

void check_chunk_hints(const Checks& check, const View& chunk_indices, const View& cu_chunks, const Sequences& s) {
    for (const auto& [argument, view] : {std::pair{"chunk_indices", &chunk_indices}, std::pair{"cu_chunks", &cu_chunks}}) {
        if (!view->defined()) continue;
        check.require(s.packed(), argument, "None without cu_seqlens", "a tensor");
        check.dtype(argument, *view, {DType::i32, DType::i64});
        check.device(argument, *view, s.query, "query");
    }
    if (chunk_indices.defined())
        check.require(chunk_indices.numel() % 2 == 0, "chunk_indices", "pairs (sequence, chunk)", shape_text(chunk_indices));
    if (cu_chunks.defined()) check.shape("cu_chunks", cu_chunks, {s.count + 1}, "(sequences + 1,)");
}

}  // namespace gdn_cuda::gdn
