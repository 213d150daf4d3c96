// What replay_decode and ring_decode share: tokens that are stored beside a pool of states.
#pragma once

#include "prepared.hpp"

namespace gdn_cuda::gdn {

// What neither kernel has code for.
inline void check_rows(const Checks& check, const Sequences& sequences) {
    dtype_or_f64(check, "query", sequences.query, {DType::bf16, DType::f16});
    for (const auto& [argument, rows] :
         {std::pair{"query", &sequences.query}, std::pair{"key", &sequences.key}, std::pair{"value", &sequences.value}}) {
        check.last_contiguous(argument, *rows);
        GDN_REQUIRE(check, rows->size(-1) % 8 == 0, argument, "a head dimension that is a multiple of 8",
                    fmt::format("{}", rows->size(-1)));
    }
}
template <class Args>
void set_call(Args& args, const GdnCall& call) {
    args.query = call.query, args.key = call.key, args.value = call.value, args.output = call.output;
    args.sequences = call.sequences, args.tokens = call.tokens;
    args.heads = call.heads, args.heads_per_key = call.heads_per_key;
    args.dk = call.dk, args.dv = call.dv;
    args.scale = call.scale, args.qk_norm = call.qk_norm;
    args.cu_seqlens = call.cu_seqlens;
    args.gate = call.gate, args.beta = call.beta;
    args.A_log = call.A_log, args.dt_bias = call.dt_bias;
    args.beta_factor = call.forms.beta_factor;
}

}  // namespace gdn_cuda::gdn
