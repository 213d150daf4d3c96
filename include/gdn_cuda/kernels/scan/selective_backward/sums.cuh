// The sums of scan/selective_backward, each in a fixed order: over the lanes of a channel, and, for the gradients of B and C,
// over the channels of a warp, then over the warps of the block: by one of them, in turn, while the others go on. The sums of
// blocks are added up by scan/selective_backward_sums.
#pragma once

#include <gdn_cuda/kernels/scan/selective_backward/block.cuh>

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
    using Block::global, Block::kIsRglru, Block::kColumns, Block::kHalf, Block::kLanes, Block::kTokens;
    using typename Block::Config;

    __device__ __forceinline__ void begin() const {
        if (threadIdx.x < 2)
            shared.partial[threadIdx.x] = varies(threadIdx.x == 0 ? in.B : in.C) ? partial_of(threadIdx.x == 0) : nullptr;
    }
    // Of four tokens: a lane gets one of their sums in front, and returns of which token; of more than four lanes, several get
    // the same.
    __device__ __forceinline__ static int over_lanes(float (&x)[kHalf], int thread) {
        static_assert(kLanes >= kHalf);
        return sum_over_lanes<kLanes, Block::Lanes::kApart, kHalf>(x, thread);
    }
    __device__ __forceinline__ static int buffer_of(int k) { return kConfig.buffers() == 1 ? 0 : k & 1; }
    // Of the thread; from lane 0, so that the compiler knows it to be uniform in a warp.
    __device__ __forceinline__ static int warp() { return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0); }
    // Whether the warp adds up sub-tile k. Neighbours have different ones.
    __device__ __forceinline__ static bool adds_up(int k, int warp) { return (k & (Config::kWarps - 1)) == warp; }
    // The gradients of B and C of four tokens, which the lanes of the warp have exchanged, over its channels.
    __device__ __forceinline__ void over_channels(int k, int half, int thread) const {
        const unsigned lane = thread % 32u, warp = thread / 32u;
        constexpr int kOver = kConfig.channels_per_warp(), kOfOne = kHalf * kColumns, kAll = 2 * kOfOne;
        constexpr int kVector = kAll < 128 ? 1 : 4;
        static_assert(kAll % (32 * kVector) == 0);
        const auto* from = &shared.exchange[warp * kOver];
        auto& to = shared.sums[buffer_of(k)][warp];
#pragma unroll
        for (int i = 0; i < kAll; i += 32 * kVector) {
            const unsigned at = i + lane * kVector, which = at / kOfOne;
            float sum[kVector];
            load(sum, &from[0][at]);
#pragma unroll
            for (int c = 1; c < kOver; ++c) add(sum, &from[c][at]);
            store(&to[which][half][0] + at % kOfOne, sum);
        }
    }
    // Where the sums of the block begin.
    __device__ __forceinline__ float* partial_of(bool is_B) const {
        const Coefficients& of = is_B ? in.B : in.C;
        const int partials = is_B ? args.partials_B : args.partials_C;
        const int block = static_cast<int>(blockIdx.x), group = block / partials, partial = block - group * partials;
        const i64 row = (static_cast<i64>(partial) * args.rows + (place.batch - args.first_row)) * of.groups + group;
        return (is_B ? args.dB : args.dC) + (row * in.length + place.start) * kColumns;
    }
    // Once all warps have written sub-tile k, one of them adds it up. Of two buffers the others write the second meanwhile, and
    // can't return to the first before the next barrier.
    __device__ __forceinline__ void over_warps(int k, int token, int tokens, int warp) const {
        __syncthreads();
        if (adds_up(k, warp)) add_up(k, token, tokens);
        if (kConfig.buffers() == 1) __syncthreads();
    }
    // To memory. A lane writes neighbouring sums of B or of C.
    __device__ __forceinline__ void add_up(int k, int token, int tokens) const {
        constexpr unsigned kOfOne = kTokens * kColumns, kAll = 2 * kOfOne, kVector = kAll < 128 ? kAll / 32 : 4;
        static_assert(kAll % (32 * kVector) == 0);
#pragma unroll
        for (unsigned i = 0; i < kAll; i += 32 * kVector) {
            const unsigned at = i + thread_again() % 32 * kVector, which = at / kOfOne, inside = at % kOfOne;
            auto* to = reinterpret_cast<float*>(global(reinterpret_cast<char*>(shared.partial[which])));
            const bool is_constant = !kConfig.only_varying && to == nullptr;
            if (is_constant || static_cast<int>(inside) >= tokens * kColumns) continue;
            float sum[kVector] = {};
            if (!kIsRglru || which == 1) {
                load(sum, &shared.sums[buffer_of(k)][0][which][0][0] + inside);
#pragma unroll
                for (int w = 1; w < Config::kWarps; ++w) add(sum, &shared.sums[buffer_of(k)][w][which][0][0] + inside);
            }
            store(to + static_cast<i64>(token) * kColumns + inside, sum);
        }
    }

  private:
    template <int kCount>
    __device__ __forceinline__ static void load(float (&to)[kCount], const float* from) {
        struct alignas(4 * kCount) Vector {
            float x[kCount];
        };
        const Vector vector = *reinterpret_cast<const Vector*>(from);
#pragma unroll
        for (int i = 0; i < kCount; ++i) to[i] = vector.x[i];
    }
    template <int kCount>
    __device__ __forceinline__ static void add(float (&to)[kCount], const float* from) {
        float x[kCount];
        load(x, from);
#pragma unroll
        for (int i = 0; i < kCount; ++i) to[i] += x[i];
    }
    template <int kCount>
    __device__ __forceinline__ static void store(float* to, const float (&from)[kCount]) {
        if constexpr (kCount == 4)
            *reinterpret_cast<float4*>(to) = {from[0], from[1], from[2], from[3]};
        else if constexpr (kCount == 2)
            *reinterpret_cast<float2*>(to) = {from[0], from[1]};
        else
            *to = from[0];
    }
};

}  // namespace gdn_cuda::scan
