// gdn/summary_tails: where the tail of each sequence and head begins: the state before it is multiplied by less than 2^-80 on
// its way to the end, as far as gates say (chunked/segments.cuh has the bound).
//
// A block goes back from the chain's end, a chunk a thread, and stops where a sum over later chunks is low enough.
//
// Bound: latency, a round of loads for every 256 chunks.
#pragma once

#include <gdn_cuda/kernels/gdn/summary/places.cuh>

namespace gdn_cuda::gdn {

// By the whole block: places of the sequences before this one. `sums`: one number per warp.
template <SummaryTailsConfig kConfig>
__device__ __forceinline__ i64 places_before(const GdnCall& call, int sequence, i64* sums) {
    if (call.cu_seqlens.data == nullptr) return sequence * chunks_in({0, call.tokens});
    i64 sum = 0;
#pragma unroll 1
    for (int n = static_cast<int>(threadIdx.x); n < sequence; n += kConfig.threads())
        sum += chunks_in(span_of(call.cu_seqlens, n, call.tokens));
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    i64 all = 0;
#pragma unroll
    for (int i = 0; i < kConfig.warps; ++i) all += sums[i];
    return all;
}

template <SummaryTailsConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads()) summary_tails(const __grid_constant__ SummaryTailsArgs args) {
    constexpr int kWarps = kConfig.warps;
    __shared__ i64 places[kWarps];
    __shared__ float sums[kWarps];
    __shared__ int found[kWarps];
    const GdnCall& call = args.call;
    const int head = static_cast<int>(blockIdx.x), sequence = static_cast<int>(blockIdx.y),
              thread = static_cast<int>(threadIdx.x), warp = thread / 32;
    const i64 before = places_before<kConfig>(call, sequence, places);
    const float* growths = args.growths + head * args.places;
    const float limit = kNegligibleLog2 - (args.by_keys == nullptr ? 0.f : kGrowthLog2);
    float later = 0.f;  // of the chunks of earlier rounds
    int first = -1;
    const int chunks = chunks_in(span_of(call.cu_seqlens, sequence, call.tokens));
#pragma unroll 1
    for (int ends = chunks; ends > 0 && first < 0; ends -= kConfig.threads()) {
        const int chunk = ends - 1 - thread;
        const i64 place = before + (args.backward ? chunks - 1 - chunk : chunk);
        float sum = chunk >= 0 && place < args.places ? growths[place] : 0.f;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const float other = __shfl_up_sync(0xffffffffu, sum, step);
            if (thread % 32 >= step) sum += other;
        }
        __syncthreads();
        if (thread % 32 == 31) sums[warp] = sum;
        __syncthreads();
        float till_here = later + sum;
#pragma unroll
        for (int i = 0; i < kWarps; ++i) {
            till_here += i < warp ? sums[i] : 0.f;
            later += sums[i];
        }
        const unsigned negligible = __ballot_sync(0xffffffffu, chunk >= 0 && till_here <= limit);
        if (thread % 32 == 0) found[warp] = negligible != 0 ? chunk + 1 - __ffs(negligible) : -1;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kWarps; ++i) first = max(first, found[i]);
    }
    if (thread == 0) args.first[sequence * call.heads + head] = max(first, 0);
}

}  // namespace gdn_cuda::gdn
