// Chunks of gdn/kda_own in which a decay is 0 while the state, a key, a value, a beta or another gate is not finite or so large
// that matrix products may overflow: 0 times infinity would spread NaN past the reset, so the chain takes such a chunk token by
// token, from the call's tensors. Rare, and many times slower.
#pragma once

#include <gdn_cuda/kernels/gdn/kda/chain_parts.cuh>
#include <gdn_cuda/kernels/gdn/kda/token_decay.cuh>
#include <gdn_cuda/kernels/gdn/prefill/by_token.cuh>

namespace gdn_cuda::gdn {

// Uniform over the warpgroup. What records have been made of is in the flags.
template <class Owner>
__device__ __forceinline__ bool products_may_overflow(const Owner& own, const TokenOperand& values, unsigned flags) {
    float largest = flags & kKdaOverflows ? quiet_nan() : 0.f;
#pragma unroll
    for (const float s : own.state) largest = at_least(largest, fabsf(s));
#pragma unroll
    for (const auto& step : values)
#pragma unroll
        for (const unsigned pair : step) {
            const float2 v = unpack<Owner::kIo>(pair);
            largest = at_least(at_least(largest, fabsf(v.x)), fabsf(v.y));
        }
    return own.any_of_warpgroup(!(largest < kKdaLargest));
}

// A token's, in shared memory.
struct KdaToken {
    float decay[kKdaHeadK], key[kKdaHeadK], query[kKdaHeadK];
};

// A thread loads one channel. Columns past dk are 0: an infinite change times a key of 0 is NaN.
template <class Owner>
__device__ __forceinline__ void load_kda_token(const Owner& own, KdaToken& to, i64 token) {
    using Io = Storage<Owner::kIo>;
    static_assert(kWarpgroup == kKdaHeadK);
    const GdnCall& call = own.args.call;
    const ChunkedWork& work = own.work;
    const int channel = own.thread;
    float decay = 0.f, key = 0.f, query = 0.f;
    if (channel < call.dk) {
        const i64 batch = batch_of(own.args, work);
        const auto load = [&](const Rows& rows) {
            return to_float(static_cast<const Io*>(
                rows.data)[batch * rows.batch + token * rows.token + work.key_head * rows.head + channel]);
        };
        key = load(call.key);
        query = load(call.query);
        decay = kda_token_decay(call, batch, token, work.head, channel);
    }
    to.decay[channel] = decay;
    to.key[channel] = key;
    to.query[channel] = query;
}
// The output takes the value's place.
template <class Owner>
__device__ __forceinline__ void apply_kda_token(Owner& own, const KdaToken& token, float beta, int in_chunk,
                                                SwizzledTile& tile) {
    using Io = Storage<Owner::kIo>;
    constexpr int kPairs = Owner::kConfig.head_k / 8;  // columns 8 n + 2 t and + 1
    const GdnCall& call = own.args.call;
    float with_key[2] = {}, with_query[2] = {}, key_square = 0.f, query_square = 0.f;
#pragma unroll
    for (int n = 0; n < kPairs; ++n) {
        const float2 decay = pair_at(&token.decay[8 * n + 2 * own.t]), key = pair_at(&token.key[8 * n + 2 * own.t]);
        key_square = fmaf(key.x, key.x, fmaf(key.y, key.y, key_square));
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float &s = own.state[4 * n + 2 * half], &s_next = own.state[4 * n + 2 * half + 1];
            s = decayed(s, decay.x);
            s_next = decayed(s_next, decay.y);
            with_key[half] = fmaf(s, key.x, fmaf(s_next, key.y, with_key[half]));
        }
    }
    const float key_norm = inverse_norm(key_square, call);
    float change[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const Io value = element_of_row(own, tile, in_chunk, half);
        change[half] = beta * (to_float(value) - key_norm * sum_over_row(with_key[half])) * key_norm;
    }
#pragma unroll
    for (int n = 0; n < kPairs; ++n) {
        const float2 key = pair_at(&token.key[8 * n + 2 * own.t]), query = pair_at(&token.query[8 * n + 2 * own.t]);
        query_square = fmaf(query.x, query.x, fmaf(query.y, query.y, query_square));
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float &s = own.state[4 * n + 2 * half], &s_next = own.state[4 * n + 2 * half + 1];
            s = fmaf(change[half], key.x, s);
            s_next = fmaf(change[half], key.y, s_next);
            with_query[half] = fmaf(s, query.x, fmaf(s_next, query.y, with_query[half]));
        }
    }
    const float query_norm = call.scale * inverse_norm(query_square, call);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float output = query_norm * sum_over_row(with_query[half]);
        __syncwarp();  // all lanes have read the value
        if (own.t == 0) element_of_row(own, tile, in_chunk, half) = from_float<Io>(output);
    }
}
// In the stage's Z, which nobody reads.
template <class Owner, class Stage>
__device__ __forceinline__ void run_kda_tokens(Owner& own, int chunk, Stage& stage) {
    auto* const tokens = reinterpret_cast<KdaToken*>(stage.update);
    const GdnCall& call = own.args.call;
    const int count = tokens_in<Owner::kConfig>(own.work.tokens, chunk);
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
        const i64 token = first_token<Owner::kConfig>(own.work.tokens, chunk) + i;
        load_kda_token(own, tokens[i % 2], token);
        RawGates gates;
        gates.load_beta(call, scalar_offset(call.beta, batch_of(own.args, own.work), token, own.work.head));
        own.warpgroup_sync();
        apply_kda_token(own, tokens[i % 2], gates.beta_of(call, call.forms), i, stage.value);
    }
}

}  // namespace gdn_cuda::gdn
