// gdn/kda_order: the order in which windows take the chunks of packed sequences (kda/window.cuh).
//
// A thread takes a chunk, and counts those before it: of each sequence as many as rounds before its own, and one of each
// longer sequence, which has a chunk in this round too.
//
// Bound: the launch, for some hundred sequences; it takes the product of chunks and sequences.
#pragma once

#include <gdn_cuda/kernels/gdn/kda/order_plan.cuh>
#include <gdn_cuda/kernels/gdn/kda/window.cuh>

namespace gdn_cuda::gdn {

// The last sequence whose entries begin at or before `at`.
__device__ __forceinline__ int sequence_of_entry(const KdaOrderArgs& args, int at) {
    int sequence = 0, last = args.sequences - 1;
    while (sequence < last) {
        const int middle = sequence + (last - sequence + 1) / 2;
        if (first_kda_chunk(span_of(args.cu_seqlens, middle, args.tokens).start, middle) <= at)
            sequence = middle;
        else
            last = middle - 1;
    }
    return sequence;
}

template <KdaOrderConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads()) kda_order(const __grid_constant__ KdaOrderArgs args) {
    constexpr int kThreads = kConfig.threads();
    __shared__ int chunks[kThreads];
    const int at = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x),
              sequence = sequence_of_entry(args, at);
    const Span span = span_of(args.cu_seqlens, sequence, args.tokens);
    const int chunk = at - first_kda_chunk(span.start, sequence);
    const int in_sequence = kda_chunks_in(span);
    i64 before = 0;  // overlapping sequences have many chunks
#pragma unroll 1
    for (int first = 0; first < args.sequences; first += kThreads) {
        const int own = first + static_cast<int>(threadIdx.x);
        __syncthreads();
        if (own < args.sequences) chunks[threadIdx.x] = kda_chunks_in(span_of(args.cu_seqlens, own, args.tokens));
        __syncthreads();
        const int count = min(kThreads, args.sequences - first);
#pragma unroll 4
        for (int i = 0; i < count; ++i)
            before += min(chunks[i], chunk) + (chunks[i] + (first + i < sequence) > in_sequence);  // of equal ones, the first
    }
    if (chunk < 0 || chunk >= in_sequence || at >= args.count || before >= args.count) return;
    args.positions[at] = static_cast<int>(before);
    args.places[before] = {sequence + 1, chunk};
}

}  // namespace gdn_cuda::gdn
