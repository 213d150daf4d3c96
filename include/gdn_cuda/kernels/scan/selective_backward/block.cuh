// The base of all parts of scan/selective_backward: arguments, the block's place, sizes, and the layout of values in shared
// memory.
#pragma once

#include <gdn_cuda/kernels/scan/discretization_gradients.cuh>
#include <gdn_cuda/kernels/scan/selective/tile.cuh>
#include <gdn_cuda/kernels/scan/selective_backward/plan.cuh>

namespace gdn_cuda::scan {

// threadIdx.x, hidden from the compiler, so that values derived from it are recomputed where they are used and take no
// registers in between.
__device__ __forceinline__ unsigned recomputed_thread() {
    return opaque(threadIdx.x);
}

template <SelectiveBackwardConfig kConfig>
struct BackwardBlock {
    using Config = SelectiveBackwardConfig;
    using Shared = SelectiveBackwardSharedPlan<kConfig>;
    static constexpr Transition kTransition = kConfig.transition;
    static constexpr int kChannels = Shared::kChannels, kColumns = Shared::kColumns, kParts = kConfig.parts();
    static constexpr int kLanes = kConfig.lanes, kStates = kConfig.states, kGroup = kConfig.group();
    static constexpr int kTokens = Config::kTokens, kLaneFloats = kStates * kParts,
                         kHalf = 4;                                                           // half: tokens of half a sub-tile
    static constexpr int kVectorsPerThread = kChannels * kStateChunk / 4 / Config::kThreads;  // per thread, of four elements
    using Lanes = ChannelLanes<kLanes>;
    using Number = scan::Number<kConfig.is_complex>;
    static constexpr bool kCoarse = kConfig.is_complex && kConfig.is_narrow;
    using Poles = Pole<kTransition, kConfig.is_complex, kCoarse>;
    using Gradient = PoleGradient<kTransition, kConfig.is_complex, kCoarse>;
    using LaneValues = Number[kStates];

    const SelectiveBackwardArgs& args;
    const SelectiveInputs& in;
    Shared& shared;
    const BackwardPlace& place;

    static constexpr bool kIsRglru = kTransition == Transition::rglru;

    __device__ __forceinline__ bool varies(const Coefficients& x) const { return kConfig.only_varying || x.varies; }

    // The row of tensors with one row per (segment, sequence).
    __device__ __forceinline__ i64 segment_row() const {
        return static_cast<i64>(place.segment) * in.sequences + place.sequence;
    }
    // Tokens of the segment from the chunk's first one on. Computed where it is used, as registers are short in the recurrence.
    __device__ __forceinline__ int left(int chunk) const { return place.length - chunk * kStateChunk; }

    // Which states a thread has: their channel, the lane in that channel, and the offset of their first float in a row.
    struct LanePosition {
        int thread, channel, lane, offset;
    };
    __device__ __forceinline__ static LanePosition lane_position() {
        const unsigned thread = recomputed_thread();
        const unsigned lane = Lanes::lane(thread);
        return {static_cast<int>(thread), static_cast<int>(Lanes::channel(thread)), static_cast<int>(lane),
                static_cast<int>(lane * kLaneFloats)};
    }

    // ---- Tiles: channels × tokens, in fp32

    using Tile = float (*)[kStateChunk];
    // Groups of four tokens are swizzled by channel, differently for eight consecutive channels and for channels eight apart,
    // so that lanes along either have no bank conflicts.
    __device__ __forceinline__ static int swizzle(int channel) { return ((channel ^ channel >> 3) & 7) << 2; }
    __device__ __forceinline__ static int in_row(int channel, int token) { return token ^ swizzle(channel); }
    __device__ __forceinline__ static float4 four(const float (*tile)[kStateChunk], int channel, int token) {
        return *reinterpret_cast<const float4*>(&tile[channel][in_row(channel, token)]);
    }

    // ---- A lane's states, contiguous in shared memory

    __device__ __forceinline__ static void load_values(LaneValues& to, const float* from) {
        float x[kLaneFloats];
        if constexpr (kLaneFloats % 4 == 0) {
#pragma unroll
            for (int i = 0; i < kLaneFloats; i += 4) {
                const float4 part = *reinterpret_cast<const float4*>(from + i);
                x[i] = part.x, x[i + 1] = part.y, x[i + 2] = part.z, x[i + 3] = part.w;
            }
        } else if constexpr (kLaneFloats == 2) {
            const float2 part = *reinterpret_cast<const float2*>(from);
            x[0] = part.x, x[1] = part.y;
        } else {
#pragma unroll
            for (int i = 0; i < kLaneFloats; ++i) x[i] = from[i];
        }
#pragma unroll
        for (int s = 0; s < kStates; ++s) {
            if constexpr (kConfig.is_complex)
                to[s] = {x[2 * s], x[2 * s + 1]};
            else
                to[s] = x[s];
        }
    }
    __device__ __forceinline__ static void store_values(float* to, const LaneValues& from) {
        float x[kLaneFloats];
#pragma unroll
        for (int s = 0; s < kStates; ++s) {
            if constexpr (kConfig.is_complex)
                x[2 * s] = from[s].re, x[2 * s + 1] = from[s].im;
            else
                x[s] = from[s];
        }
        if constexpr (kLaneFloats % 4 == 0) {
#pragma unroll
            for (int i = 0; i < kLaneFloats; i += 4) *reinterpret_cast<float4*>(to + i) = {x[i], x[i + 1], x[i + 2], x[i + 3]};
        } else if constexpr (kLaneFloats == 2) {
            *reinterpret_cast<float2*>(to) = {x[0], x[1]};
        } else {
#pragma unroll
            for (int i = 0; i < kLaneFloats; ++i) to[i] = x[i];
        }
    }
    __device__ __forceinline__ static void add_values(float* to, const LaneValues& x) {
        LaneValues sum;
        load_values(sum, to);
#pragma unroll
        for (int s = 0; s < kStates; ++s) sum[s] = sum[s] + x[s];
        store_values(to, sum);
    }

    // Tells the compiler that an address read from shared memory points to global memory.
    __device__ __forceinline__ static char* global(char* address) {
        __builtin_assume(__isGlobal(address));
        return address;
    }
    // x + i y; with unsigned operands one instruction.
    template <class Byte>
    __device__ __forceinline__ static Byte* offset_by(Byte* x, int i, unsigned y) {
        return x + static_cast<unsigned long long>(static_cast<unsigned>(i)) * y;
    }
};

}  // namespace gdn_cuda::scan
