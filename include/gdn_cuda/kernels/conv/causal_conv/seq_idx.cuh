// Which earlier tokens a token must not see when seq_idx gives the sequences, for the kernels for few taps.
//
// Tokens with the same index may be apart, so each token has a mask of its own. Most steps of a kernel hold a single
// sequence and need no masks: the block finds these steps first and builds masks only for the others, in shared memory.
#pragma once

#include <gdn_cuda/kernels/conv/causal_conv/packed_runs.cuh>

namespace gdn_cuda::conv {

// Bit m: the token does not see the token m before it. Bit 0: it belongs to no sequence.
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

// The masks of a lane's tokens and of the kBefore tokens after them.
template <int kVector, int kBefore>
struct HiddenFromLane {
    unsigned words[(kVector + kBefore + 3) / 4];

    __device__ __forceinline__ bool is(int token, int back) const {
        return (words[token / 4] >> (token % 4 * 8 + back) & 1) != 0;
    }
    __device__ __forceinline__ float seen(float x, int token, int back) const { return is(token, back) ? 0.f : x; }
};

// The masks of up to kSteps steps of kStep tokens, in shared memory. kAfter: a step is also mixed if the kBefore tokens
// after it, which see its tokens, are of another sequence.
template <int kSteps, int kStep, int kBefore, bool kAfter>
struct CausalStepMasks {
    alignas(8) HiddenBits hidden[kSteps * kStep + 32];  // for mixed steps, and for the 32 tokens after each
    bool uniform[kSteps];  // one sequence holds a step's tokens, those they see and (kAfter) those that see them

    // Called by all threads of a block. `is_mixed(first token of a step)` forces a step to be mixed.
    __device__ __forceinline__ void look_up(const CausalSequences& sequences, int first, int steps, const auto& is_mixed) {
        const int warps = static_cast<int>(blockDim.x) / 32;
#pragma unroll 1
        for (int i = static_cast<int>(threadIdx.x) / 32; i < steps; i += warps)
            look_up_step(sequences, first + i * kStep, i, i == steps - 1, is_mixed(first + i * kStep));
    }
    // By one warp, with all its loads in flight at once.
    __device__ __forceinline__ void look_up_step(const CausalSequences& sequences, int begin, int step, bool is_last,
                                                 bool is_mixed) {
        constexpr int kParts = kStep / 32;
        const int lane = static_cast<int>(threadIdx.x) % 32;
        i64 index[kParts + 1 + kAfter];  // for the 32 tokens before the step, its own, and the 32 after it
#pragma unroll
        for (int p = 0; p < kParts + 1 + kAfter; ++p)
            index[p] = sequences.index_of(min(begin + (p - 1) * 32 + lane, sequences.args.tokens - 1));
        const i64 first_index = __shfl_sync(kAllLanes, index[1], 0);
        bool same = first_index >= 0 && !is_mixed && (lane < 32 - kBefore || index[0] == first_index);
#pragma unroll
        for (int p = 1; p <= kParts; ++p) same &= index[p] == first_index;
        if constexpr (kAfter) same &= lane >= kBefore || index[kParts + 1] == first_index;
        same = __all_sync(kAllLanes, same);
        if (lane == 0) uniform[step] = same;
        HiddenBits* const to = hidden + step * kStep + lane;
        if (same) {
            to[0] = 0;
            if (kAfter && is_last) to[kStep] = 0;
            return;
        }
#pragma unroll
        for (int p = 1; p < kParts + 1 + kAfter; ++p) {
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
    __device__ __forceinline__ HiddenFromLane<kVector, kBefore> for_lane(int step, int lane) const {
        HiddenFromLane<kVector, kBefore> found;
        const auto* const from = reinterpret_cast<const unsigned*>(hidden + step * kStep + lane * kVector);
#pragma unroll
        for (int i = 0; i < (kVector + kBefore + 3) / 4; ++i) found.words[i] = from[i];
        return found;
    }
};

}  // namespace gdn_cuda::conv
