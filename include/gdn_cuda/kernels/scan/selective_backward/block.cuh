// What every part of scan/selective_backward knows: its arguments, its place, the names of its sizes, and how numbers lie in
// shared memory.
#pragma once

#include <gdn_cuda/kernels/scan/discretization_gradients.cuh>
#include <gdn_cuda/kernels/scan/selective/tile.cuh>
#include <gdn_cuda/kernels/scan/selective_backward/plan.cuh>

namespace gdn_cuda::scan {

// threadIdx.x, such that what is computed from it is computed where it is used: kept through the walk, it would take registers.
__device__ __forceinline__ unsigned thread_again() {
    return opaque(threadIdx.x);
}

template <SelectiveBackwardConfig kConfig>
struct BackwardBlock {
    using Config = SelectiveBackwardConfig;
    using Shared = SelectiveBackwardSharedPlan<kConfig>;
    static constexpr Transition kTransition = kConfig.transition;
    static constexpr int kChannels = Shared::kChannels, kColumns = Shared::kColumns, kParts = kConfig.parts();
    static constexpr int kLanes = kConfig.lanes, kStates = kConfig.states, kGroup = kConfig.group();
    static constexpr int kTokens = Config::kTokens, kNumbers = kStates * kParts, kHalf = 4;  // tokens of half a sub-tile
    static constexpr int kFours = kChannels * kStateChunk / 4 / Config::kThreads;            // elements of a thread, by fours
    using Lanes = ChannelLanes<kLanes>;
    using Number = scan::Number<kConfig.is_complex>;
    using Poles = Pole<kTransition, kConfig.is_complex>;
    using Gradient = PoleGradient<kTransition, kConfig.is_complex>;
    using Numbers = Number[kStates];

    const SelectiveBackwardArgs& args;
    const SelectiveInputs& in;
    Shared& shared;
    const BackwardPlace& place;

    static constexpr bool kIsRglru = kTransition == Transition::rglru;

    __device__ __forceinline__ bool varies(const Coefficients& x) const { return kConfig.only_varying || x.varies; }

    // In tensors that have a row for each piece of each sequence.
    __device__ __forceinline__ i64 row_of_piece() const {
        return static_cast<i64>(place.piece) * in.sequences + place.sequence;
    }
    // Tokens of the piece from the first of a chunk on. Computed where it is used, as registers are short in the walk.
    __device__ __forceinline__ int left(int chunk) const { return place.length - chunk * kStateChunk; }

    // The states of a thread: a channel, its lane, and the first of their real numbers in a row.
    struct Seat {
        int thread, channel, lane, number;
    };
    __device__ __forceinline__ static Seat seat() {
        const unsigned thread = thread_again();
        const unsigned lane = Lanes::lane(thread);
        return {static_cast<int>(thread), static_cast<int>(Lanes::channel(thread)), static_cast<int>(lane),
                static_cast<int>(lane * kNumbers)};
    }

    // ---- Tiles: channels × tokens, in fp32

    using Tile = float (*)[kStateChunk];
    // Groups of four tokens are swizzled by the channel, differently for eight neighbouring channels and for channels eight
    // apart, so that lanes along either have no bank conflicts.
    __device__ __forceinline__ static int swizzle(int channel) { return ((channel ^ channel >> 3) & 7) << 2; }
    __device__ __forceinline__ static int in_row(int channel, int token) { return token ^ swizzle(channel); }
    __device__ __forceinline__ static float4 four(const float (*tile)[kStateChunk], int channel, int token) {
        return *reinterpret_cast<const float4*>(&tile[channel][in_row(channel, token)]);
    }

    // ---- The numbers of a lane's states, side by side in shared memory

    __device__ __forceinline__ static void load_numbers(Numbers& to, const float* from) {
        float x[kNumbers];
        if constexpr (kNumbers % 4 == 0) {
#pragma unroll
            for (int i = 0; i < kNumbers; i += 4) {
                const float4 part = *reinterpret_cast<const float4*>(from + i);
                x[i] = part.x, x[i + 1] = part.y, x[i + 2] = part.z, x[i + 3] = part.w;
            }
        } else if constexpr (kNumbers == 2) {
            const float2 part = *reinterpret_cast<const float2*>(from);
            x[0] = part.x, x[1] = part.y;
        } else {
#pragma unroll
            for (int i = 0; i < kNumbers; ++i) x[i] = from[i];
        }
#pragma unroll
        for (int s = 0; s < kStates; ++s) {
            if constexpr (kConfig.is_complex)
                to[s] = {x[2 * s], x[2 * s + 1]};
            else
                to[s] = x[s];
        }
    }
    __device__ __forceinline__ static void store_numbers(float* to, const Numbers& from) {
        float x[kNumbers];
#pragma unroll
        for (int s = 0; s < kStates; ++s) {
            if constexpr (kConfig.is_complex)
                x[2 * s] = from[s].re, x[2 * s + 1] = from[s].im;
            else
                x[s] = from[s];
        }
        if constexpr (kNumbers % 4 == 0) {
#pragma unroll
            for (int i = 0; i < kNumbers; i += 4) *reinterpret_cast<float4*>(to + i) = {x[i], x[i + 1], x[i + 2], x[i + 3]};
        } else if constexpr (kNumbers == 2) {
            *reinterpret_cast<float2*>(to) = {x[0], x[1]};
        } else {
#pragma unroll
            for (int i = 0; i < kNumbers; ++i) to[i] = x[i];
        }
    }
    __device__ __forceinline__ static void add_numbers(float* to, const Numbers& x) {
        Numbers sum;
        load_numbers(sum, to);
#pragma unroll
        for (int s = 0; s < kStates; ++s) sum[s] = sum[s] + x[s];
        store_numbers(to, sum);
    }

    // The compiler cannot know which memory an address points to that was read from shared memory.
    __device__ __forceinline__ static char* global(char* address) {
        __builtin_assume(__isGlobal(address));
        return address;
    }
    // x + i y: unsigned, this is one instruction.
    template <class Byte>
    __device__ __forceinline__ static Byte* along(Byte* x, int i, unsigned y) {
        return x + static_cast<unsigned long long>(static_cast<unsigned>(i)) * y;
    }
};

}  // namespace gdn_cuda::scan
