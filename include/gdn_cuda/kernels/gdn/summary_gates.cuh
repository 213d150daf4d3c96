// gdn/summary_gates: by how much the gates of each chunk multiply a state, in log2; with norms, its betas too.
//
// A thread takes a chunk and head, adjacent threads adjacent heads, so that gates are read once.
//
// Bound: memory, gates read once.
#pragma once

#include <gdn_cuda/kernels/gdn/summary/places.cuh>

namespace gdn_cuda::gdn {

// Calls visit(value) for the scalars of a chunk's tokens, of which several are loaded at once.
template <class Visit>
__device__ __forceinline__ void for_each_scalar(const Scalars& scalars, i64 at, int tokens, Visit&& visit) {
    constexpr int kAtOnce = 16;
#pragma unroll 1
    for (int first = 0; first < tokens; first += kAtOnce) {
        unsigned raw[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            raw[i] = load_raw(scalars.values, at);
            at += first + i + 1 < tokens ? scalars.token : 0;  // the last one again, past the end
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
            if (first + i < tokens) visit(to_float(raw[i], scalars.values.type));
    }
}

__device__ __forceinline__ float growth_by_gates(const GdnCall& call, int sequence, const Span& span, int head, i64 chunk) {
    const i64 first = chunk * kChunk;
    const int tokens = static_cast<int>(min(span.length - first, i64{kChunk}));
    const auto place_of = [&](const Scalars& scalars) {
        return sequence * scalars.batch + (span.start + first) * scalars.token + head * scalars.head;
    };
    float gates = 0.f, growth = 0.f;
    for_each_scalar(call.gate, place_of(call.gate), tokens, [&](float gate) { gates += gate; });
    if (call.qk_norm)
        for_each_scalar(call.beta, place_of(call.beta), tokens, [&](float beta) {
            const float change = fabsf(1.f - beta);
            growth += change <= 1.f ? 0.f : __log2f(change);  // NaN is never negligible
        });
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
