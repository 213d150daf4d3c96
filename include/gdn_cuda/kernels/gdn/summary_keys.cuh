// gdn/summary_keys: by how much the keys of a tail may let a state grow: the sum of log2 |1 - beta |k|^2| over tokens where
// that is positive. Nearly none are where keys are normalised; without that, any may be.
//
// A block takes a slice of the longest tail of the key head's value heads. Half a warp reads a key; then each of its lanes
// takes a value head.
//
// Bound: memory, the keys of tails read once.
#pragma once

#include <gdn_cuda/kernels/common/pairs.cuh>
#include <gdn_cuda/kernels/gdn/summary/places.cuh>

namespace gdn_cuda::gdn {

// |k|^2, by half a warp.
template <DType kIo>
__device__ __forceinline__ float key_square(const GdnCall& call, int sequence, i64 token, int key_head) {
    const auto* key = static_cast<const Storage<kIo>*>(call.key.data) + sequence * call.key.batch + token * call.key.token +
                      key_head * call.key.head;
    float square = 0.f;
    if (const int element = threadIdx.x % 16 * 8; element < call.dk)
        add_squares<kIo>(square, *reinterpret_cast<const uint4*>(key + element));
#pragma unroll
    for (int step = 8; step > 0; step /= 2) square += __shfl_xor_sync(0xffffffffu, square, step);
    return square;
}

template <SummaryKeysConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads()) summary_keys(const __grid_constant__ SummaryTailsArgs args) {
    constexpr int kLanes = 16, kHalves = kConfig.threads() / kLanes;
    __shared__ float sums[kHalves][kLanes];
    const GdnCall& call = args.call;
    const int slice = static_cast<int>(blockIdx.x), key_head = static_cast<int>(blockIdx.y),
              sequence = static_cast<int>(blockIdx.z), lane = static_cast<int>(threadIdx.x) % kLanes,
              half = static_cast<int>(threadIdx.x) / kLanes;
    const Span span = span_of(call.cu_seqlens, sequence, call.tokens);
#pragma unroll 1
    for (int group = 0; group < call.heads_per_key; group += kLanes) {
        const bool has_head = group + lane < call.heads_per_key;
        const int head = key_head * call.heads_per_key + (has_head ? group + lane : group), pair = sequence * call.heads + head,
                  own_chunk = args.first[pair];
        // Tokens of the tail; of one that is the whole part none, since it counts in any case.
        const i64 own = own_chunk == 0  ? 0
                        : args.backward ? i64{chunks_in(span) - own_chunk} * kChunk
                                        : span.length - i64{own_chunk} * kChunk;
        i64 longest = own;
#pragma unroll
        for (int step = kLanes / 2; step > 0; step /= 2) longest = max(longest, __shfl_xor_sync(0xffffffffu, longest, step));
        const i64 first = args.backward ? 0 : span.length - longest, own_first = args.backward ? 0 : span.length - own,
                  own_last = args.backward ? own : span.length;
        const int begins = static_cast<int>(first + longest * slice / args.slices),
                  ends = static_cast<int>(first + longest * (slice + 1) / args.slices);
        float growth = 0.f;
#pragma unroll 4
        for (int from = begins; from < ends; from += kHalves) {
            const int token = from + half;
            const i64 at = span.start + min(token, ends - 1);
            const float square = key_square<kConfig.io>(call, sequence, at, key_head);
            const float beta =
                load_float(call.beta.values, sequence * call.beta.batch + at * call.beta.token + head * call.beta.head);
            const float change = fabsf(1.f - beta * square);
            if (token < ends && token >= own_first && token < own_last)
                growth += change <= 1.f ? 0.f : __log2f(change);  // NaN counts
        }
        __syncthreads();
        sums[half][lane] = growth;
        __syncthreads();
        if (half == 0 && has_head) {
            float all = 0.f;
            for (int i = 0; i < kHalves; ++i) all += sums[i][lane];
            args.by_keys[static_cast<i64>(pair) * args.slices + slice] = all;
        }
    }
}

}  // namespace gdn_cuda::gdn
