// gdn/summary_tails: where the tail of each sequence and head begins: the state before it is multiplied by less than 2^-80 on
// its way to the end, as far as gates say (chunked/segments.cuh has the bound).
//
// A block goes back from the end, a chunk a thread, and stops where a sum over later chunks is low enough.
//
// Bound: latency; a head of fast decay takes one round of loads, one of 55,000 tokens four.
#pragma once

#include <gdn_cuda/kernels/common/varlen.cuh>
#include <gdn_cuda/kernels/gdn/summary/tails.cuh>

namespace gdn_cuda::gdn {

// log2 of what the chunk's gates multiply a state by, and its betas where keys have norms of 1.
__device__ __forceinline__ float growth_by_gates(const GdnCall& call, int sequence, const Span& span, int head, int chunk) {
    const int tokens = min(span.length - chunk * kChunk, kChunk);
    const i64 first = span.start + static_cast<i64>(chunk) * kChunk;
    const auto scalar_of = [&](const Scalars& scalars, int token) {
        return load_float(scalars.values, sequence * scalars.batch + (first + token) * scalars.token + head * scalars.head);
    };
    float gates = 0.f, growth = 0.f;
#pragma unroll 16
    for (int token = 0; token < kChunk; ++token) gates += token < tokens ? scalar_of(call.gate, token) : 0.f;
    if (call.qk_norm)
#pragma unroll 16
        for (int token = 0; token < kChunk; ++token) {
            const float change = token < tokens ? fabsf(1.f - scalar_of(call.beta, token)) : 0.f;
            growth += change <= 1.f ? 0.f : __log2f(change);  // NaN is never negligible
        }
    return fmaf(gates, kLog2e, growth);
}

template <SummaryTailsConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads()) summary_tails(const __grid_constant__ SummaryTailsArgs args) {
    constexpr int kWarps = kConfig.warps;
    __shared__ float sums[kWarps];
    __shared__ int found[kWarps];
    const GdnCall& call = args.call;
    const int head = static_cast<int>(blockIdx.x), sequence = static_cast<int>(blockIdx.y), thread = threadIdx.x,
              warp = thread / 32;
    const Span span = span_of(call.cu_seqlens, sequence, call.tokens);
    const int chunks = (span.length + kChunk - 1) / kChunk;
    const float limit = kNegligibleLog2 - (call.qk_norm ? 0.f : kGrowthLog2);
    float later = 0.f;  // of the chunks of earlier rounds
    int first = -1;
#pragma unroll 1
    for (int ends = chunks; ends > 0 && first < 0; ends -= kConfig.threads()) {
        const int chunk = ends - 1 - thread;
        float sum = chunk >= 0 ? growth_by_gates(call, sequence, span, head, chunk) : 0.f;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const float other = __shfl_up_sync(0xffffffffu, sum, step);
            if (thread % 32 >= step) sum += other;
        }
        __syncthreads();
        if (thread % 32 == 31) sums[warp] = sum;
        __syncthreads();
        float before = later;
#pragma unroll
        for (int i = 0; i < kWarps; ++i) {
            before += i < warp ? sums[i] : 0.f;
            later += sums[i];
        }
        const unsigned negligible = __ballot_sync(0xffffffffu, chunk >= 0 && before + sum <= limit);
        if (thread % 32 == 0) found[warp] = negligible != 0 ? chunk + 1 - __ffs(negligible) : -1;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kWarps; ++i) first = max(first, found[i]);
    }
    if (thread == 0) args.first[sequence * call.heads + head] = max(first, 0);
}

}  // namespace gdn_cuda::gdn
