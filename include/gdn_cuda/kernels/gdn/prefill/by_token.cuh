// Chunks of gdn/prefill in which some gate's exponential is 0, which resets the state, while the state, a key, a value, a beta
// or another gate is not finite or so large that matrix products may overflow. 0 times infinity would spread NaN past the
// reset, so a value warpgroup takes such a chunk token by token: many times slower, and rare.
#pragma once

#include <gdn_cuda/kernels/chunked/state_owner.cuh>
#include <gdn_cuda/kernels/chunked/tile_elements.cuh>
#include <gdn_cuda/kernels/recurrence/call.cuh>

namespace gdn_cuda::gdn {

// Whether a chunk that resets the state must be taken token by token; uniform over the warpgroup.
template <class Owner>
__device__ __forceinline__ bool products_may_overflow(const Owner& own, int chunk) {
    constexpr float kLimit = 1e18f;  // 256 products of two smaller values sum to a finite one
    const int at = PipelineStage<Owner::kConfig.stages>(chunk).index;
    const auto& stage = tiles_of<Owner::kConfig>(own.shared, chunk, at);
    float largest = 0.f;  // or NaN
#pragma unroll
    for (const float s : own.state) largest = at_least(largest, fabsf(s));
    const auto scan = [&](const SwizzledTile& tile) {
        constexpr int kPairs = sizeof(SwizzledTile) / sizeof(unsigned);
#pragma unroll 1
        for (int i = own.thread; i < kPairs; i += kWarpgroup) {
            const float2 pair = unpack<Owner::kIo>(reinterpret_cast<const unsigned*>(tile.bytes)[i]);
            largest = at_least(at_least(largest, fabsf(pair.x)), fabsf(pair.y));
        }
    };
#pragma unroll 1
    for (int i = 0; i < Owner::kConfig.key_tiles(); ++i) scan(stage.key[i]);
    scan(stage.value[own.index()]);
    const auto& factors = own.shared.factors[at];
    const float beta = factors.beta[own.thread % kChunk], gate = factors.gate[own.thread % kChunk];
    return own.any_of_warpgroup(!(at_least(largest, fabsf(beta)) < kLimit) || isnan(gate));
}

// A token's gate or beta.
template <class Owner>
__device__ __forceinline__ float load_scalar(const Owner& own, const Scalars& scalars, int chunk, int token) {
    const i64 at = own.work.tokens.start + in_time<Owner::kConfig>(own.work.tokens, chunk) * kChunk + token;
    return load_float(scalars.values, own.work.sequence * scalars.batch + at * scalars.token + own.work.head * scalars.head);
}
__device__ __forceinline__ float inverse_norm(float square, const GdnCall& call) {
    square = sum_over_row(square);
    return call.qk_norm ? rsqrtf(square + kNormEpsilon) : 1.f;
}

// The recurrence over a chunk's tokens in fp32. Writes the output tile: no TMA store may still be reading it.
template <class Owner>
__device__ __forceinline__ void run_tokens(Owner& own, int chunk) {
    using Io = Storage<Owner::kIo>;
    constexpr int kPairs = Owner::kConfig.head_k / 8;  // a thread's pairs of elements of a key or query
    const GdnCall& call = own.args.call;
    auto&& stage = tiles_of<Owner::kConfig>(own.shared, chunk, PipelineStage<Owner::kConfig.stages>(chunk).index);
    SwizzledTile& outputs = own.shared.output[own.index()];
    const int count = tokens_in<Owner::kConfig>(own.work.tokens, chunk);
#pragma unroll 1
    for (int token = 0; token < count; ++token) {
        const float decay = exp2_fast(load_scalar(own, call.gate, chunk, token) * kLog2e);
        const float beta = load_scalar(own, call.beta, chunk, token);
        float with_key[2] = {}, with_query[2] = {}, key_square = 0.f, query_square = 0.f;
#pragma unroll
        for (int n = 0; n < kPairs; ++n) {
            const float2 key = load_pair<Owner::kIo>(stage.key, token, n, own.t);
            key_square = fmaf(key.x, key.x, fmaf(key.y, key.y, key_square));
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float &s = own.state[4 * n + 2 * half], &s_next = own.state[4 * n + 2 * half + 1];
                s = decay == 0.f ? 0.f : s * decay;
                s_next = decay == 0.f ? 0.f : s_next * decay;
                with_key[half] = fmaf(s, key.x, fmaf(s_next, key.y, with_key[half]));
            }
        }
        const float key_norm = inverse_norm(key_square, call);
        float change[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const Io value = element_of_row(own, stage.value[own.index()], token, half);
            change[half] = beta * (to_float(value) - key_norm * sum_over_row(with_key[half])) * key_norm;
        }
#pragma unroll
        for (int n = 0; n < kPairs; ++n) {
            const float2 key = load_pair<Owner::kIo>(stage.key, token, n, own.t),
                         query = load_pair<Owner::kIo>(stage.query, token, n, own.t);
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
            if (own.t == 0) element_of_row(own, outputs, token, half) = from_float<Io>(output);
        }
    }
}

// Runs a pass's chunks from `first` on: run_chunks(first, checked) stops before one that resets the state, unless that is
// `checked` already, and returns where it stopped.
template <class Owner, class RunChunks, class RunByTokens>
__device__ __forceinline__ void for_each_chunk(Owner& own, int first, RunChunks&& run_chunks, RunByTokens&& run_by_tokens) {
#pragma unroll 1
    for (int chunk = first, checked = -1;;) {
        chunk = run_chunks(chunk, checked);
        if (chunk >= own.work.tokens.chunks) break;
        if (products_may_overflow(own, chunk)) {
            run_by_tokens(chunk);
            ++chunk;
        } else {
            checked = chunk;
        }
    }
}

}  // namespace gdn_cuda::gdn
