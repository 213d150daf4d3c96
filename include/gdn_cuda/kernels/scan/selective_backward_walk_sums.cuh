// The sums of scan/selective_backward, each in a fixed order: over the lanes of a channel, and, for the gradients of B and C,
// over the channels of a warp, then over the warps of the block. The sums of blocks are added up by
// scan/selective_backward_sums.
#pragma once

#include <gdn_cuda/kernels/scan/selective_backward_block.cuh>

namespace gdn_cuda::scan {

// Sums each of kCount numbers over kLanes lanes, kDistance apart. A lane keeps kCount / kLanes sums, at least one, in front of
// x; returns which the first of them is.
template <int kLanes, int kDistance, int kCount, int kSize>
__device__ __forceinline__ int sum_over_lanes(float (&x)[kSize], int lane) {
    if constexpr (kLanes == 1) {
        return 0;
    } else if constexpr (kCount == 1) {
        x[0] += __shfl_xor_sync(0xffffffffu, x[0], kLanes / 2 * kDistance);
        return sum_over_lanes<kLanes / 2, kDistance, 1>(x, lane);
    } else {
        constexpr int kHalf = kCount / 2, kPartner = kLanes / 2 * kDistance;
        const bool upper = (lane & kPartner) != 0;
#pragma unroll
        for (int i = 0; i < kHalf; ++i) {
            const float sent = upper ? x[i] : x[i + kHalf], kept = upper ? x[i + kHalf] : x[i];
            x[i] = kept + __shfl_xor_sync(0xffffffffu, sent, kPartner);
        }
        return (upper ? kHalf : 0) + sum_over_lanes<kLanes / 2, kDistance, kHalf>(x, lane);
    }
}

template <SelectiveBackwardConfig kConfig>
struct BackwardSums : BackwardBlock<kConfig> {
    using Block = BackwardBlock<kConfig>;
    using Block::args, Block::in, Block::place, Block::shared, Block::varies;
    using Block::kIsRglru, Block::kColumns, Block::kHalf, Block::kLanes, Block::kTokens;
    using typename Block::Config;

    __device__ __forceinline__ void begin() const {
        if (threadIdx.x < 2)
            shared.partial[threadIdx.x] = varies(threadIdx.x == 0 ? in.B : in.C) ? partial_of(threadIdx.x == 0) : nullptr;
    }
    // Sums over the states of a channel, of four tokens, to where its lanes have read.
    __device__ __forceinline__ void over_states(float* to, float (&x)[kHalf], int thread) const {
        static_assert(kLanes >= kHalf);
        const int token = sum_over_lanes<kLanes, 1, kHalf>(x, thread);
        __syncwarp();                                          // all lanes have read
        if (thread % (kLanes / kHalf) == 0) to[token] = x[0];  // others have the same sum
    }
    __device__ __forceinline__ static int buffer_of(int k) { return kConfig.buffers() == 1 ? 0 : k % 2; }
    // The gradients of B and C of four tokens, over the channels of the warp.
    __device__ __forceinline__ void over_channels(int k, int half, int thread) const {
        const int lane = thread % 32, warp = thread / 32;
        constexpr int kOver = kConfig.channels_per_warp(), kOfOne = kHalf * kColumns, kAll = 2 * kOfOne;
        constexpr int kVector = kAll < 128 ? 1 : 4;
        static_assert(kAll % (32 * kVector) == 0);
        const auto* from = &shared.exchange[warp * kOver];
        auto& to = shared.sums[buffer_of(k)][warp];
        __syncwarp();
#pragma unroll
        for (int i = 0; i < kAll; i += 32 * kVector) {
            const int at = i + lane * kVector, which = at / kOfOne;
            float sum[kVector] = {};
#pragma unroll
            for (int c = 0; c < kOver; ++c) {
                if constexpr (kVector == 4) {
                    const float4 x = *reinterpret_cast<const float4*>(&from[c][at]);
                    sum[0] += x.x, sum[1] += x.y, sum[2] += x.z, sum[3] += x.w;
                } else {
                    sum[0] += from[c][at];
                }
            }
            float* into = &to[which][half][0] + at % kOfOne;
            if constexpr (kVector == 4)
                *reinterpret_cast<float4*>(into) = {sum[0], sum[1], sum[2], sum[3]};
            else
                *into = sum[0];
        }
        __syncwarp();  // all lanes have read
    }
    // Where the sums of the block begin.
    __device__ __forceinline__ float* partial_of(bool is_B) const {
        const Coefficients& of = is_B ? in.B : in.C;
        const int partials = is_B ? args.partials_B : args.partials_C;
        const int block = static_cast<int>(blockIdx.x), group = block / partials, partial = block - group * partials;
        const i64 row = (static_cast<i64>(partial) * args.rows + (place.batch - args.first_row)) * of.groups + group;
        return (is_B ? args.dB : args.dC) + (row * in.length + place.start) * kColumns;
    }
    // Of all warps, to memory: a thread writes neighbouring sums of B or of C.
    __device__ __forceinline__ void over_warps(int k, int token, int tokens) const {
        constexpr int kOfOne = kTokens * kColumns,
                      kVector = 2 * kOfOne / Config::kThreads < 1 ? 1 : 2 * kOfOne / Config::kThreads;
        static_assert(kVector == 1 || kVector == 2 || kVector == 4);
        const int at = thread_again() * kVector, which = at / kOfOne, inside = at % kOfOne;
        if (at >= 2 * kOfOne || inside >= tokens * kColumns) return;
        float* to = shared.partial[which];
        if (to == nullptr) return;  // constant
        to += static_cast<i64>(token) * kColumns + inside;
        float sum[kVector] = {};
        if (!kIsRglru || which == 1)
#pragma unroll
            for (int w = 0; w < Config::kWarps; ++w) {
                const float* from = &shared.sums[buffer_of(k)][w][which][0][0] + inside;
#pragma unroll
                for (int i = 0; i < kVector; ++i) sum[i] += from[i];
            }
        if constexpr (kVector == 4)
            *reinterpret_cast<float4*>(to) = {sum[0], sum[1], sum[2], sum[3]};
        else if constexpr (kVector == 2)
            *reinterpret_cast<float2*>(to) = {sum[0], sum[1]};
        else
            *to = sum[0];
    }
};

}  // namespace gdn_cuda::scan
