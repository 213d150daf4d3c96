// gdn/summary_gates: by how much the gates of each chunk multiply a state, in log2; with norms, its betas too.
//
// A thread takes a chunk and head, adjacent threads adjacent heads, so that gates are read once.
//
// Bound: memory, gates read once.
#pragma once

#include <gdn_cuda/kernels/gdn/summary/places.cuh>

namespace gdn_cuda::gdn {

__device__ __forceinline__ float growth_by_gates(const GdnCall& call, int sequence, const Span& span, int head, i64 chunk) {
    const i64 first = chunk * kChunk;
    const int tokens = static_cast<int>(min(span.length - first, i64{kChunk}));
    const auto scalar_of = [&](const Scalars& scalars, int token) {
        return load_float(scalars.values,
                          sequence * scalars.batch + (span.start + first + token) * scalars.token + head * scalars.head);
    };
    float gates = 0.f, growth = 0.f;
#pragma unroll  // all loads at once
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
__global__ void __launch_bounds__(kConfig.threads()) summary_gates(const __grid_constant__ SummaryTailsArgs args) {
    const GdnCall& call = args.call;
    const i64 step = static_cast<i64>(gridDim.x) * kConfig.threads();
    i64 item = static_cast<i64>(blockIdx.x) * kConfig.threads() + threadIdx.x, before = 0;  // before: places
#pragma unroll 1
    for (int sequence = 0; sequence < call.sequences; ++sequence) {
        const Span span = span_of(call.cu_seqlens, sequence, call.tokens);
        const i64 ends = before + chunks_in(span);
#pragma unroll 1
        for (; item < ends * call.heads; item += step) {
            const i64 place = item / call.heads;
            const int head = static_cast<int>(item - place * call.heads);
            if (place < args.places)
                args.growths[head * args.places + place] = growth_by_gates(call, sequence, span, head, place - before);
        }
        before = ends;
    }
}

}  // namespace gdn_cuda::gdn
