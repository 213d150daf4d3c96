// gdn/summary_keys: by how much the keys of a tail may let a state grow: the sum of log2 |1 - beta |k|^2| over tokens where
// that is positive. Nearly none are where keys are normalised; without that, any may be.
//
// A block takes a slice of a tail; half a warp reads a key.
//
// Bound: memory, a tail's keys once for each value head.
#pragma once

#include <gdn_cuda/kernels/common/pairs.cuh>
#include <gdn_cuda/kernels/common/varlen.cuh>
#include <gdn_cuda/kernels/gdn/summary/tails.cuh>

namespace gdn_cuda::gdn {

template <DType kIo>
__device__ __forceinline__ float key_square(const GdnCall& call, int sequence, i64 token, int head) {
    const int key_head = static_cast<int>(static_cast<unsigned>(head) / static_cast<unsigned>(call.heads_per_key));
    const auto* key = static_cast<const Storage<kIo>*>(call.key.data) + sequence * call.key.batch + token * call.key.token +
                      key_head * call.key.head;
    float square = 0.f;
    for (int element = threadIdx.x % 16 * 8; element < call.dk; element += 128)
        add_squares<kIo>(square, *reinterpret_cast<const uint4*>(key + element));
#pragma unroll
    for (int step = 8; step > 0; step /= 2) square += __shfl_xor_sync(0xffffffffu, square, step);
    return square;
}

template <SummaryKeysConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads()) summary_keys(const __grid_constant__ SummaryTailsArgs args) {
    __shared__ float sums[kConfig.warps];
    const GdnCall& call = args.call;
    const int slice = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y),
              sequence = static_cast<int>(blockIdx.z), pair = sequence * call.heads + head;
    const Span span = span_of(call.cu_seqlens, sequence, call.tokens);
    const int first = args.first[pair];
    float growth = 0.f;
    if (first > 0) {  // else all of it counts anyway
        const i64 tail = static_cast<i64>(first) * kChunk, tokens = span.length - tail;
        const int begins = static_cast<int>(tail + tokens * slice / args.slices),
                  ends = static_cast<int>(tail + tokens * (slice + 1) / args.slices);
#pragma unroll 4
        for (int pair_of_tokens = begins / 2 + static_cast<int>(threadIdx.x) / 32; 2 * pair_of_tokens < ends;
             pair_of_tokens += kConfig.warps) {
            const int token = 2 * pair_of_tokens + static_cast<int>(threadIdx.x) % 32 / 16;
            const bool counts = token >= begins && token < ends;
            const i64 at = span.start + min(max(token, begins), ends - 1);
            const float square = key_square<kConfig.io>(call, sequence, at, head);
            const float beta =
                load_float(call.beta.values, sequence * call.beta.batch + at * call.beta.token + head * call.beta.head);
            const float change = fabsf(1.f - beta * square);
            if (counts && threadIdx.x % 16 == 0) growth += change <= 1.f ? 0.f : __log2f(change);
        }
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) growth += __shfl_xor_sync(0xffffffffu, growth, step);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = growth;
    __syncthreads();
    if (threadIdx.x == 0) {
        float all = 0.f;
        for (const float each : sums) all += each;
        args.growth[pair * args.slices + slice] = all;
    }
}

}  // namespace gdn_cuda::gdn
