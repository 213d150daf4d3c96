// gdn/summary_segments: the segments of all tails, one after another, and where each tail's are. One block.
//
// Bound: latency; a few rounds of loads.
#pragma once

#include <gdn_cuda/kernels/gdn/summary/places.cuh>

namespace gdn_cuda::gdn {

template <SummaryTailsConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads()) summary_segments(const __grid_constant__ SummaryTailsArgs args) {
    constexpr int kWarps = kConfig.warps;
    __shared__ int sums[kWarps];
    const GdnCall& call = args.call;
    const int pairs = call.sequences * call.heads, thread = static_cast<int>(threadIdx.x), warp = thread / 32;
    int results = 0;  // of the pairs before
#pragma unroll 1
    for (int first_pair = 0; first_pair < pairs; first_pair += kConfig.threads()) {
        const int pair = first_pair + thread;
        SummarySegment tail{};
        int segments = 0;
        if (pair < pairs) {
            tail.sequence = static_cast<int>(static_cast<unsigned>(pair) / static_cast<unsigned>(call.heads));
            tail.head = pair - tail.sequence * call.heads;
            tail.last = chunks_in(span_of(call.cu_seqlens, tail.sequence, call.tokens));
            float growth = 0.f;
            for (int slice = 0; slice < (args.by_keys != nullptr ? args.slices : 0); ++slice)
                growth += args.by_keys[static_cast<i64>(pair) * args.slices + slice];
            tail.first = growth <= kGrowthLog2 ? args.first[pair] : 0;  // NaN: all counts
            segments = summary_segments_of(tail.last - tail.first);
        }
        const int own = max(segments - 1, 0);
        int sum = own;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const int other = __shfl_up_sync(0xffffffffu, sum, step);
            if (thread % 32 >= step) sum += other;
        }
        __syncthreads();
        if (thread % 32 == 31) sums[warp] = sum;
        __syncthreads();
        int before = results + sum - own;
#pragma unroll
        for (int i = 0; i < kWarps; ++i) {
            before += i < warp ? sums[i] : 0;
            results += sums[i];
        }
        if (pair >= pairs) continue;
        // Sequences that overlap (varlen.cuh) may leave no room: then the last ones have fewer segments.
        const int first_result = min(before, args.most_results), others = min(before + own, args.most_results) - first_result;
        args.tails[pair] = {min(segments, 1 + others), first_result, tail.first};
        const auto begins = [&](int segment) {
            return tail.first + static_cast<int>(static_cast<i64>(tail.last - tail.first) * segment / (1 + others));
        };
#pragma unroll 1
        for (int segment = 0; segment <= others; ++segment)
            args.segments[segment == 0 ? pair : pairs + first_result + segment - 1] = {
                tail.sequence, tail.head, begins(segment), begins(segment + 1), segment == 0 ? -1 : first_result + segment - 1};
    }
    if (thread == 0) *args.count = pairs + min(results, args.most_results);
}

}  // namespace gdn_cuda::gdn
