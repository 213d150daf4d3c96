// What a token does not see where a seq_idx tells sequences: for the kernels of few taps.
//
// Tokens of one index need not be neighbours, so each token has bits of its own. Most steps of a kernel are of one sequence and
// need none: which ones is looked up in advance, and bits are in shared memory for the other steps alone.
#pragma once

#include <gdn_cuda/kernels/conv/causal_conv_runs.cuh>

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

// What a block finds of up to kSteps steps of kStep tokens, in shared memory.
template <int kSteps, int kStep, int kBefore>
struct CausalStepsFound {
    alignas(8) HiddenBits hidden[kSteps * kStep + 32];  // of the steps that are not together, and of 32 tokens behind each step
    bool together[kSteps];  // a step's tokens, those that they see and those that see them are of one sequence

    // All threads of a block call it. The last step of a row is not together where a state behind it has a gradient.
    __device__ __forceinline__ void look_up(const CausalSequences& sequences, int first, int steps, bool has_grad_behind) {
        const int lane = static_cast<int>(threadIdx.x) % 32, warps = static_cast<int>(blockDim.x) / 32;
#pragma unroll 1
        for (int i = static_cast<int>(threadIdx.x) / 32; i <= steps; i += warps) {
            const int begin = first + i * kStep, behind = begin + kStep + kBefore, tokens = sequences.args.tokens;
            const bool is_behind = i == steps;
            bool same = false;
            if (!is_behind) {
                const i64 index = sequences.index_of(begin - kBefore);
                same = index >= 0 && !(has_grad_behind && begin + kStep >= tokens);
#pragma unroll
                for (int j = -kBefore; j < kStep + kBefore; j += 32)
                    same &= sequences.index_of(min(begin + j + lane, min(behind, tokens) - 1)) == index;
                same = __all_sync(kAllLanes, same);
                if (lane == 0) together[i] = same;
            }
#pragma unroll 1
            for (int j = lane; j < (same || is_behind ? 32 : kStep); j += 32)
                hidden[i * kStep + j] = same ? HiddenBits{} : hidden_by_index<kBefore>(sequences, begin + j);
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
