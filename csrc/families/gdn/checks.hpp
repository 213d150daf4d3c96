// Checks of the inputs that all GDN operators have.
#pragma once

#include <algorithm>

#include "../../operators/float64.hpp"
#include "../../operators/packed.hpp"
#include "../../operators/state_slots.hpp"
#include "head_dimensions.hpp"

namespace gdn_cuda::gdn {

constexpr int64_t kMaxGridYZ = kMostBlocks[1];  // grid limit in y and z, for heads and sequences

void check_head_dim(const Checks& check, const char* argument, int64_t dim);

// The names of query, key and value in an operator.
struct RowNames {
    const char *query = "query", *key = "key", *value = "value";
};

// Padded (B, T, H, d), or packed (N, H, d) or (1, N, H, d) with cu_seqlens; packed views have no batch dimension.
struct Sequences {
    View query, key, value, cu_seqlens;
    RowNames names;
    bool unit_batch = false;  // packed tensors were (1, N, …)
    int64_t count = 0;        // sequences
    int64_t tokens = 0;       // per sequence; in total if packed
    int64_t key_heads = 0, value_heads = 0, dk = 0, dv = 0;
    int64_t heads = 0;  // heads of states, gates and outputs: value's, or query's if query has more
    DType io = DType::bf16;

    bool packed() const { return cu_seqlens.defined(); }
    // What all kernels take: 16-bit tensors, rows without gaps, head dimensions that are multiples of 8, a value for each head.
    bool plain() const;
    View without_batch(const View& view) const;  // drops the dimension of 1 where packed tensors have it
    Batch batch() const { return {count, tokens, packed(), query, names.query}; }
    int64_t mean_tokens() const { return packed() ? tokens / std::max<int64_t>(count, 1) : tokens; }
    int64_t state_numel() const { return heads * dv * dk; }
    bool has_more_queries() const { return heads > value_heads; }
    int64_t chunks_at_most(int64_t chunk) const { return packed() ? tokens / chunk + count : count * ceil_div(tokens, chunk); }
};

enum class QueryHeads { fewer, any };  // fewer than values, or as many
Sequences check_sequences(const Checks& check, const Tensor& query, const Tensor& key, const Tensor& value,
                          const View& cu_seqlens, QueryHeads query_heads = QueryHeads::fewer, const RowNames& names = {});
// (B, T, Hv) or (N, Hv), any strides and any dtype that rows may have.
Scalars check_scalars(const Checks& check, const char* argument, const View& view, const Sequences& sequences);
Tagged check_per_head(const Checks& check, const char* argument, const View& view, const Sequences& sequences);

}  // namespace gdn_cuda::gdn
