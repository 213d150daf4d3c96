// A call of gdn/prefill, gdn/prefill_ahead or gdn/prefill_mma, as far as configurations and schedules depend on it.
#pragma once

#include <algorithm>
#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda::gdn {

inline constexpr int kLongestNarrowKey = 128;

struct ChunkedProblem {
    i64 sequences, tokens;  // tokens: mean per sequence
    int heads, dk, dv;
    DType io, state;
    bool deterministic = false;  // how a sequence is split depends on its length alone
    i64 packed_tokens = 0;       // the sum of lengths, if sequences are packed: any of them may be so long

    bool operator==(const ChunkedProblem&) const = default;

    GDN_FIELDS(sequences, tokens, heads, dk, dv, io, state, deterministic, packed_tokens)

    // By gdn/prefill, if tensors' addresses and strides allow it.
    bool is_runnable() const {
        constexpr i64 kMostTokens = i64{1} << 31, kMostHeads = 65535, kLongestKey = 256;
        const auto fits = [](i64 size, i64 most) { return size > 0 && size <= most; };
        return fits(sequences, kMostHeads) && fits(tokens, kMostTokens) && fits(heads, kMostHeads) && fits(dk, kLongestKey) &&
               fits(dv, kLongestKey) && bytes_of(io) == 2 && packed_tokens >= 0 && packed_tokens <= kMostTokens;
    }
    bool is_wide() const { return dk > kLongestNarrowKey; }
    i64 longest() const { return std::max(tokens, packed_tokens); }
    bool differ() const { return packed_tokens > 0 && sequences > 1; }  // in length
};

}  // namespace gdn_cuda::gdn
