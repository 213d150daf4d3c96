// scan/selective_backward, sums in a fixed order: over the lanes of a channel, and for the gradients of B and C over the
// channels of a warp, then over the warps of the block. Warps take turns at the latter, while the others continue.
// scan/selective_backward_sums adds up the sums of the blocks.
#pragma once

#include <gdn_cuda/kernels/scan/selective_backward/block.cuh>

namespace gdn_cuda::scan {

// Sums each of kCount values over kLanes lanes at a distance of kDistance. A lane gets kCount / kLanes of the sums, at least
// one, at the beginning of x; returns the index of its first sum.
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
    // Sums a value of each of four tokens over the channel's lanes: x[0] becomes the sum of the token that is returned. With
    // more than four lanes, several get the same sum.
    __device__ __forceinline__ static int over_lanes(float (&x)[kHalf], int thread) {
        static_assert(kLanes >= kHalf);
        return sum_over_lanes<kLanes, Block::Lanes::kLaneStride, kHalf>(x, thread);
    }
    __device__ __forceinline__ static int buffer_of(int k) { return kConfig.buffers() == 1 ? 0 : k & 1; }
    // This thread's warp; read from lane 0, so that the compiler knows it is uniform.
    __device__ __forceinline__ static int warp() { return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0); }
    // Whether it is this warp's turn to add up sub-tile k.
    __device__ __forceinline__ static bool adds_up(int k, int warp) { return (k & (Config::kWarps - 1)) == warp; }
    // Sums the gradients of B and C for four tokens, from `exchange`, over the channels of the warp.
    __device__ __forceinline__ void over_channels(int k, int half, int thread) const {
        const unsigned lane = thread % 32u, warp = thread / 32u;
        constexpr int kChannelsPerWarp = kConfig.channels_per_warp(), kFloatsPerTensor = kHalf * kColumns,
                      kFloats = 2 * kFloatsPerTensor;
        constexpr int kVector = kFloats < 128 ? 1 : 4;
        static_assert(kFloats % (32 * kVector) == 0);
        const auto* from = &shared.exchange[warp * kChannelsPerWarp];
        auto& to = shared.sums[buffer_of(k)][warp];
#pragma unroll
        for (int i = 0; i < kFloats; i += 32 * kVector) {
            const unsigned at = i + lane * kVector, which = at / kFloatsPerTensor;
            float sum[kVector];
            load(sum, &from[0][at]);
#pragma unroll
            for (int c = 1; c < kChannelsPerWarp; ++c) add(sum, &from[c][at]);
            store(&to[which][half][0] + at % kFloatsPerTensor, sum);
        }
    }
    // The address of the block's sums.
    __device__ __forceinline__ float* partial_of(bool is_B) const {
        const Coefficients& coefficients = is_B ? in.B : in.C;
        const int partials = is_B ? args.partials_B : args.partials_C;
        const int block = static_cast<int>(blockIdx.x), group = block / partials, partial = block - group * partials;
        const i64 row = (static_cast<i64>(partial) * args.rows + (place.batch - args.first_row)) * coefficients.groups + group;
        return (is_B ? args.dB : args.dC) + (row * in.length + place.start) * kColumns;
    }
    // After all warps have written sub-tile k, it is added up. With two buffers one warp does so, while the others write the
    // second; they reach the first again only after the next barrier. With one all would wait for it, so each adds up a part.
    __device__ __forceinline__ void over_warps(int k, int token, int tokens, int warp) const {
        __syncthreads();
        if constexpr (kConfig.buffers() == 1) {
            add_up<Config::kThreads>(k, token, tokens);
            __syncthreads();
        } else {
            if (adds_up(k, warp)) add_up<32>(k, token, tokens);
        }
    }
    // Adds up sub-tile k over the warps and writes it to global memory, by kAdders consecutive threads. A thread writes
    // contiguous sums of B or of C.
    template <unsigned kAdders>
    __device__ __forceinline__ void add_up(int k, int token, int tokens) const {
        constexpr unsigned kFloatsPerTensor = kTokens * kColumns, kFloats = 2 * kFloatsPerTensor, kEach = kFloats / kAdders,
                           kVector = kEach < 1   ? 1
                                     : kEach < 4 ? kEach
                                                 : 4;
        static_assert(kFloats % (32 * kVector) == 0);
#pragma unroll
        for (unsigned i = 0; i < kFloats; i += kAdders * kVector) {
            const unsigned at = i + recomputed_thread() % kAdders * kVector, which = at / kFloatsPerTensor,
                           inside = at % kFloatsPerTensor;
            if (kEach < 1 && at >= kFloats) continue;
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
