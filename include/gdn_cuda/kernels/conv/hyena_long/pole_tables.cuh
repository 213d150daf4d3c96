// A warp's tables of its channel's poles in shared memory, for conv/hyena_long and its gradients.
#pragma once

#include <gdn_cuda/kernels/conv/hyena/common.cuh>
#include <gdn_cuda/kernels/conv/hyena_long/plan.cuh>
#include <gdn_cuda/kernels/conv/toeplitz/product.cuh>

namespace gdn_cuda::conv {

// e^(log_pole tokens); 1 for zero tokens and any pole.
__device__ __forceinline__ float pole_power(float log_pole, int tokens) {
    return tokens == 0 ? 1.f : expf(log_pole * static_cast<float>(tokens));
}
// The same in twice the precision, because a state is multiplied by it thousands of times.
struct LongFactor {
    float value, residual;

    __device__ __forceinline__ LongFactor(float value, float residual) : value(value), residual(residual) {}
    __device__ __forceinline__ LongFactor(float log_pole, int tokens) {
        const double exact = tokens == 0 ? 1. : exp(static_cast<double>(log_pole) * tokens);
        value = static_cast<float>(exact);
        residual = static_cast<float>(exact - value);
    }
    __device__ __forceinline__ float times_plus(float state, float added) const {
        return fmaf(value, state, fmaf(residual, state, added));
    }
};

// Whether a state decays to nothing, to less than 2^-80.
__device__ __forceinline__ bool decays_over(float log_pole, int tokens) {
    constexpr float kNegligible = -55.45f;
    return log_pole * static_cast<float>(tokens) < kNegligible;
}

struct HyenaPoles {
    const HyenaLongArgs& args;
    int row;

    __device__ __forceinline__ HyenaPoles(const HyenaLongArgs& args, int channel)
        : args(args), row(channel / args.channels_a_row) {}
    __device__ __forceinline__ float residue(int state) const {
        return load_float(args.residues, row * args.residue_row + state * args.residue_state);
    }
    __device__ __forceinline__ float log_pole(int state) const {
        return load_float(args.log_poles, row * args.pole_row + state * args.pole_state);
    }

    // Whether all states of the channel do; for a whole warp.
    __device__ __forceinline__ bool decay_over(int tokens) const {
        bool all = true;
        for (int state = static_cast<int>(threadIdx.x) % 32; state < args.states; state += 32)
            all &= decays_over(log_pole(state), tokens);
        return __all_sync(0xffffffffu, all);
    }

    // Writes h of the first 32 tokens to `h`; a __syncwarp has to follow.
    __device__ __forceinline__ void fill_taps(float* h, int lane) const {
        float sum = 0.f;
#pragma unroll 1
        for (int state = 0; state < args.states; ++state) sum = fmaf(residue(state), pole_power(log_pole(state), lane), sum);
        h[lane] = sum;
    }
    // States that do not exist get factors of zero.
    __device__ __forceinline__ void fill_decays(HyenaDecays& to, int group, int lane) const {
        const int state = lane % kHyenaGroup;
        const bool exists = group * kHyenaGroup + state < args.states;
        const float log = exists ? log_pole(group * kHyenaGroup + state) : 0.f;
        const auto decay = [&](int tokens) { return exists ? LongFactor(log, tokens) : LongFactor(0.f, 0.f); };
#pragma unroll 1
        for (int i = lane / kHyenaGroup; i < 8; i += 2) to.rows[i][state] = decay(i * kRowTokens).value;
#pragma unroll 1
        for (int i = lane / kHyenaGroup; i < 3; i += 2) to.doubled[i][state] = decay(kRowTokens << i).value;
        to.half[state] = decay(kTileTokens / 2).value;
        const LongFactor tile = decay(kTileTokens);
        to.tile[0][state] = tile.value;
        to.tile[1][state] = tile.residual;
    }
    template <int kParts>
    __device__ __forceinline__ void fill(HyenaPoleGroup<kParts>& to, int group, int lane) const {
        const int g = lane / 4, t = lane % 4;
        const auto exists = [&](int state) { return group * kHyenaGroup + state < args.states; };
        const auto log_of = [&](int state) { return log_pole(group * kHyenaGroup + state); };
#pragma unroll 1
        for (int eight = 0; eight < 2; ++eight) {
            const int state = 8 * eight + g;
            const float log = exists(state) ? log_of(state) : 0.f;
#pragma unroll
            for (int p = 0; p < 4; ++p) {
                const int after = kRowTokens - 1 - (8 * t + 2 * p);  // tokens of the row after the first of the pair
                const float first = exists(state) ? pole_power(log, after) : 0.f;
                const float second = exists(state) ? pole_power(log, after - 1) : 0.f;
                unsigned pair[kParts];
                split_pair(pair, first, second);
#pragma unroll
                for (int part = 0; part < kParts; ++part) to.to_states[part][eight][lane][p] = pair[part];
            }
        }
#pragma unroll 1
        for (int eight = 0; eight < 2; ++eight) {
            const int state = 8 * eight + 2 * t;
            float residues[2], logs[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                residues[i] = exists(state + i) ? residue(group * kHyenaGroup + state + i) : 0.f;
                logs[i] = exists(state + i) ? log_of(state + i) : 0.f;
            }
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const int after = 8 * (g / 2) + 2 * j + g % 2 + 1;
                const float first = residues[0] * pole_power(logs[0], after);
                const float second = residues[1] * pole_power(logs[1], after);
                unsigned pair[kParts];
                split_pair(pair, first, second);
#pragma unroll
                for (int part = 0; part < kParts; ++part) to.to_outputs[part][j / 2][lane][2 * (j % 2) + eight] = pair[part];
            }
        }
        fill_decays(to, group, lane);
    }
};

}  // namespace gdn_cuda::conv
