// A chunk's gates and betas, and the factors of its tokens that follow from them: scalings of products, and exponents of their
// decay. Norms of keys and queries are factors too; q, k and v are never rewritten.
//
// That needs one gate a token and head. With a gate for each channel of the key (Kimi Delta Attention), exp(G) scales elements
// of keys and queries. In place of key_scale, query_scale and update_scale, the tiles exp(G) k, exp(G) q and exp(G_C - G) k
// would be written for the value role's products; decay() (chunked/token_products.cuh), which multiplies finished products by
// exp(G_i - G_j), would have to act inside the sum over channels; and a chunk's decay would scale each column of the state by
// its own factor (scale_fragment in the rule).
#pragma once

#include <gdn_cuda/kernels/chunked/tokens.cuh>
#include <gdn_cuda/kernels/common/pairs.cuh>
#include <gdn_cuda/kernels/recurrence/call.cuh>

namespace gdn_cuda::gdn {

// Gates or betas of tokens 2 lane and 2 lane + 1, loaded by one warp long before use.
struct ScalarStream {
    const DType type;
    const int token_stride;  // in bytes
    const char* at;
    RawElement raw[2];

    __device__ __forceinline__ explicit ScalarStream(const Scalars& scalars)
        : type(scalars.values.type), token_stride(static_cast<int>(scalars.token) * bytes_of(type)) {}
    __device__ __forceinline__ ScalarStream(const Scalars& scalars, const ChunkedWork& work) : ScalarStream(scalars) {
        at = static_cast<const char*>(scalars.values.data) +
             (work.sequence * scalars.batch + work.head * scalars.head) * bytes_of(type) +
             (work.tokens.start + 2 * (threadIdx.x % 32)) * token_stride;
    }
    __device__ __forceinline__ void start_at(const char* first) { at = first + 2 * (threadIdx.x % 32) * token_stride; }
    __device__ __forceinline__ void issue_loads(int count, int to_next) {
        const int first = 2 * (threadIdx.x % 32);
        if (first < count) raw[0].load({at, type}, 0);
        if (first + 1 < count) raw[1].load({at + token_stride, type}, 0);
        at += static_cast<i64>(token_stride) * to_next;
    }
    __device__ __forceinline__ float2 values() const { return {raw[0].to_float(type), raw[1].to_float(type)}; }
};

// Cumulative gates (log2) of tokens 2 lane and 2 lane + 1. Gates are clamped at kLowestGateLog2: their exponential is 0 in any
// case, and the sum keeps precision for differences of later gates. `resets`: whether some gate's exponential is 0.
__device__ __forceinline__ float2 cumulate(float2 gate, bool& resets) {
    const int lane = threadIdx.x % 32;
    gate = {at_least(gate.x * kLog2e, kLowestGateLog2), at_least(gate.y * kLog2e, kLowestGateLog2)};
    resets = __any_sync(0xffffffffu, gate.x < kResetGateLog2 || gate.y < kResetGateLog2);
    float sum = gate.x + gate.y;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const float before = __shfl_up_sync(0xffffffffu, sum, step);
        if (lane >= step) sum += before;
    }
    const float before = __shfl_up_sync(0xffffffffu, sum, 1);
    return {gate.x + (lane == 0 ? 0.f : before), sum};
}

__device__ __forceinline__ float log_inverse_norm(float square) {
    return -0.5f * __log2f(square + kNormEpsilon);
}

// A key's exponents. log_norm: log2 of the inverse norm, or 0 if keys are taken as they are.
template <bool kHalf, class Factors>
__device__ __forceinline__ void store_key_exponents(Factors& factors, int token, float log_norm) {
    const float gate = factors.gate[token];
    factors.column[token] = gate - log_norm;
    if constexpr (!kHalf) factors.key_row[token] = gate + log_norm + __log2f(fabsf(factors.beta[token]));
}
// A key's scales, which only value warpgroups need.
template <class Factors>
__device__ __forceinline__ void store_key_scales(Factors& factors, int token, float log_norm) {
    const float gate = factors.gate[token], end = factors.gate[kChunk - 1];
    factors.key_scale[token] = exp2_fast(gate + log_norm);
    factors.update_scale[token] = exp2_fast(end - gate + log_norm);
    if constexpr (requires { factors.key_norm; }) factors.key_norm[token] = exp2_fast(log_norm);
}
template <class Factors>
__device__ __forceinline__ void store_query_factors(Factors& factors, int token, float log_norm, float scale) {
    const float gate = factors.gate[token];
    factors.query_row[token] = gate + log_norm + __log2f(fabsf(scale));
    factors.query_scale[token] = scale * exp2_fast(gate + log_norm);
    if constexpr (requires { factors.query_norm; }) factors.query_norm[token] = exp2_fast(log_norm);
}

}  // namespace gdn_cuda::gdn
