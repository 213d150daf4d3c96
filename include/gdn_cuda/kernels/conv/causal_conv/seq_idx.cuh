// What a token does not see where a seq_idx tells sequences: for the kernels of few taps.
//
// Tokens of one index need not be neighbours, so each token has bits of its own. Most steps of a kernel are of one sequence and
// need none: which ones is looked up in advance, and bits are in shared memory for the other steps alone.
#pragma once

#include <gdn_cuda/kernels/conv/causal_conv/packed_runs.cuh>

namespace gdn_cuda::conv {

// Bit m: the token does not see the one m before; bit 0: it is of no sequence.
using HiddenBits = unsigned char;

template <int kBefore>
__device__ __forceinline__ HiddenBits hidden_by_index(const CausalSequences& sequences, int token) {
    static_assert(kBefore < 8);
    const i64 index = token < sequences.args.tokens ? sequences.index_of(token) : kNoSequence;
    unsigned hidden = index < 0;
#pragma unroll
    for (int m = 1; m <= kBefore; ++m)
        if (index < 0 || sequences.index_of(token - m) != index) hidden |= 1u << m;
    return static_cast<HiddenBits>(hidden);
}

// The bits of a lane's tokens and of kBefore behind them.
template <int kVector, int kBefore>
struct HiddenFromLane {
    unsigned words[(kVector + kBefore + 3) / 4];

    __device__ __forceinline__ bool is(int token, int back) const {
        return (words[token / 4] >> (token % 4 * 8 + back) & 1) != 0;
    }
    __device__ __forceinline__ float seen(float x, int token, int back) const { return is(token, back) ? 0.f : x; }
};

// What a block finds of up to kSteps steps of kStep tokens, in shared memory. kBehind: what sees a step's tokens matters as
// well.
template <int kSteps, int kStep, int kBefore, bool kBehind>
struct CausalStepsFound {
    alignas(8) HiddenBits hidden[kSteps * kStep + 32];  // of the steps that are not together, and of 32 tokens behind each step
    bool together[kSteps];  // a step's tokens, those that they see and those that see them are of one sequence

    // All threads of a block call it. `is_apart`: a step by its first token that is not together in any case.
    __device__ __forceinline__ void look_up(const CausalSequences& sequences, int first, int steps, const auto& is_apart) {
        const int warps = static_cast<int>(blockDim.x) / 32;
#pragma unroll 1
        for (int i = static_cast<int>(threadIdx.x) / 32; i < steps; i += warps)
            look_up_step(sequences, first + i * kStep, i, i == steps - 1, is_apart(first + i * kStep));
    }
    // By a warp, from loads that are in flight together.
    __device__ __forceinline__ void look_up_step(const CausalSequences& sequences, int begin, int step, bool is_last,
                                                 bool is_apart) {
        constexpr int kParts = kStep / 32;
        const int lane = static_cast<int>(threadIdx.x) % 32;
        i64 index[kParts + 1 + kBehind];  // of 32 tokens in front of the step, its tokens, and 32 behind it
#pragma unroll
        for (int p = 0; p < kParts + 1 + kBehind; ++p)
            index[p] = sequences.index_of(min(begin + (p - 1) * 32 + lane, sequences.args.tokens - 1));
        const i64 of_first = __shfl_sync(kAllLanes, index[1], 0);
        bool same = of_first >= 0 && !is_apart && (lane < 32 - kBefore || index[0] == of_first);
#pragma unroll
        for (int p = 1; p <= kParts; ++p) same &= index[p] == of_first;
        if constexpr (kBehind) same &= lane >= kBefore || index[kParts + 1] == of_first;
        same = __all_sync(kAllLanes, same);
        if (lane == 0) together[step] = same;
        HiddenBits* const to = hidden + step * kStep + lane;
        if (same) {
            to[0] = 0;
            if (kBehind && is_last) to[kStep] = 0;
            return;
        }
#pragma unroll
        for (int p = 1; p < kParts + 1 + kBehind; ++p) {
            unsigned bits = index[p] < 0;
#pragma unroll
            for (int m = 1; m <= kBefore; ++m) {
                const i64 before = __shfl_sync(kAllLanes, lane >= 32 - m ? index[p - 1] : index[p], (lane + 32 - m) % 32);
                if (index[p] < 0 || before != index[p]) bits |= 1u << m;
            }
            if (p <= kParts || is_last) to[(p - 1) * 32] = static_cast<HiddenBits>(bits);
        }
    }
    template <int kVector>
    __device__ __forceinline__ HiddenFromLane<kVector, kBefore> of_lane(int step, int lane) const {
        HiddenFromLane<kVector, kBefore> found;
        const auto* const from = reinterpret_cast<const unsigned*>(hidden + step * kStep + lane * kVector);
#pragma unroll
        for (int i = 0; i < (kVector + kBefore + 3) / 4; ++i) found.words[i] = from[i];
        return found;
    }
};

}  // namespace gdn_cuda::conv
