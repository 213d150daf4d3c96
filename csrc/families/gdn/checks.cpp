#include "checks.hpp"

namespace gdn_cuda::gdn {

void check_head_dim(const Checks& check, const char* argument, int64_t dim) {
    GDN_REQUIRE(check, dim >= 1 && dim <= kMaxHeadDim, argument, fmt::format("a head dimension from 1 to {}", kMaxHeadDim),
                fmt::format("{}", dim));
}

bool Sequences::plain() const {
    const auto without_gaps = [](const View& view) { return view.size(-1) == 1 || view.stride(-1) == 1; };
    return !has_more_queries() && bytes_of(io) == 2 && dk % 8 == 0 && dv % 8 == 0 && without_gaps(query) && without_gaps(key) &&
           without_gaps(value);
}

View Sequences::without_batch(const View& view) const {
    if (!unit_batch || view.rank == 0 || view.size(0) != 1) return view;
    View packed_view = view;
    --packed_view.rank;
    ++packed_view.sizes;
    ++packed_view.strides;
    return packed_view;
}

Sequences check_sequences(const Checks& check, const Tensor& query, const Tensor& key, const Tensor& value,
                          const View& cu_seqlens, QueryHeads query_heads, const RowNames& names) {
    Sequences s{.query = View(query), .key = View(key), .value = View(value), .cu_seqlens = cu_seqlens, .names = names};
    s.unit_batch = cu_seqlens.defined() && s.query.rank == 4 && s.query.size(0) == 1;
    for (View* rows : {&s.query, &s.key, &s.value}) *rows = s.without_batch(*rows);
    const View &q = s.query, &k = s.key, &v = s.value;
    const auto as_query = [&] { return fmt::format("to match {} {}", names.query, shape_text(q)); };
    GDN_REQUIRE(check, q.rank == 3 || q.rank == 4, names.query,
                "rank 4 (B, T, Hk, dk), or (N, Hk, dk) or (1, N, Hk, dk) with cu_seqlens", shape_text(q));
    GDN_REQUIRE(check, (q.rank == 3) == cu_seqlens.defined(), "cu_seqlens",
                q.rank == 3 ? fmt::format("a tensor, as {} is packed (rank 3)", names.query)
                            : fmt::format("None, as {} is padded (rank 4)", names.query),
                q.rank == 3 ? "None" : "a tensor");
    GDN_REQUIRE(check, k.rank == q.rank, names.key, fmt::format("rank {} {}", q.rank, as_query()), shape_text(k));
    GDN_REQUIRE(check, v.rank == q.rank, names.value, fmt::format("rank {} {}", q.rank, as_query()), shape_text(v));
    if (!std::equal(v.sizes, v.sizes + v.rank - 2, q.sizes))
        fail(check.function, names.value,
             q.rank == 3 ? fmt::format("(N={}, Hv, dv) {}", q.size(0), as_query())
                         : fmt::format("(B={}, T={}, Hv, dv) {}", q.size(0), q.size(1), as_query()),
             shape_text(v));
    s.key_heads = k.size(-2);
    s.value_heads = v.size(-2);
    s.heads = std::max(q.size(-2), s.value_heads);
    GDN_REQUIRE(check, q.size(-2) >= 1, names.query, "at least one head", shape_text(q));
    const bool any = query_heads == QueryHeads::any;
    GDN_REQUIRE(
        check,
        s.value_heads >= 1 && s.heads % q.size(-2) == 0 && (!s.has_more_queries() || (any && s.heads % s.value_heads == 0)),
        names.value,
        fmt::format("a number of heads that is a multiple of {}'s {}{}", names.query, q.size(-2), any ? ", or divides it" : ""),
        fmt::format("{}", s.value_heads));
    // Keys have as many heads as values where queries have more.
    GDN_REQUIRE(
        check,
        std::equal(k.sizes, k.sizes + k.rank - 2, q.sizes) && k.size(-1) == q.size(-1) &&
            s.key_heads == std::min(q.size(-2), s.value_heads),
        names.key,
        fmt::format("the shape of {} {}{}", names.query, shape_text(q),
                    s.has_more_queries() ? fmt::format(" with the {} of {} for heads", s.value_heads, names.value) : ""),
        shape_text(k));

    s.io = check.number(names.query, q);
    check.dtype(names.key, k, {s.io});
    check.dtype(names.value, v, {s.io});
    check.device(names.key, k, q, names.query);
    check.device(names.value, v, q, names.query);
    s.dk = q.size(-1);
    s.dv = v.size(-1);
    GDN_REQUIRE(check, s.heads <= kMaxGridYZ, s.has_more_queries() ? names.query : names.value,
                fmt::format("at most {} heads", kMaxGridYZ), fmt::format("{}", s.heads));
    check_head_dim(check, names.query, s.dk);
    check_head_dim(check, names.value, s.dv);
    if (cu_seqlens.defined()) {
        check_cu_seqlens(check, cu_seqlens, q.size(0), q, names.query);
        s.count = cu_seqlens.size(0) - 1;
        s.tokens = q.size(0);
    } else {
        s.count = q.size(0);
        s.tokens = q.size(1);
    }
    check.count(names.query, "tokens", s.tokens, kMaxTokens);
    check.count(names.query, "sequences", s.count);
    return s;
}

Scalars check_scalars(const Checks& check, const char* argument, const View& scalars, const Sequences& s) {
    const View view = s.unit_batch && scalars.rank == 2 ? View() : s.without_batch(scalars);
    GDN_REQUIRE(check, view.defined(), argument, fmt::format("rank 3 (1, N, Hv), as {} has", s.names.query),
                shape_text(scalars));
    if (s.packed()) {
        check.shape(argument, view, {s.tokens, s.heads}, s.has_more_queries() ? "(N, Hq)" : "(N, Hv)");
    } else {
        check.shape(argument, view, {s.count, s.tokens, s.heads}, s.has_more_queries() ? "(B, T, Hq)" : "(B, T, Hv)");
    }
    dtype_beside(check, argument, view, s.io);
    check.device(argument, view, s.query, s.names.query);
    return scalars_of(view);
}

Tagged check_per_head(const Checks& check, const char* argument, const View& view, const Sequences& s) {
    check.shape(argument, view, {s.heads}, s.has_more_queries() ? "(Hq,)" : "(Hv,)");
    dtype_beside(check, argument, view, s.io);
    check.device(argument, view, s.query, s.names.query);
    check.last_contiguous(argument, view);
    return tagged(view);
}

}  // namespace gdn_cuda::gdn
