// One token or several of a causal FIR filter per channel, behind the K − 1 inputs that a state in a pool holds:
//
//     y_t = Σ_k w_k window_{t+k} + bias (· u_t if gated),   window = (state, u),   state ← the last K − 1 of window
//
// A row, a channel of a sequence, has 1 to 32 lanes of a warp. They hold the window of the current token in registers, by age:
// age 0 is the token before. After a token every number moves to the next age, within a lane or by a shuffle from the lane
// before, so taps stay where they are and are loaded once, and several tokens have the bits of single ones.
//
// Bound by bytes, 2 (K − 1) numbers of state a row, and at few sequences by the latency of two loads in turn (slot, state).
// Taps come from L1 and L2: groups and sequences share them.
#pragma once

#include <gdn_cuda/kernels/common/vector.cuh>
#include <gdn_cuda/kernels/conv/hyena_step_rows.cuh>

namespace gdn_cuda::conv {

template <HyenaFirStepConfig kConfig>
struct FirWindow {
    static constexpr int kLanes = kConfig.lanes, kElements = kConfig.elements;
    float inputs[kElements];  // of ages e · kLanes + lane; 0 behind the window
    float taps[kElements];
    float current_tap;
    int lane;

    __device__ __forceinline__ int age(int e) const { return e * kLanes + lane; }

    __device__ __forceinline__ void load(const HyenaFirStepArgs& args, const HyenaStepRow& row) {
        const i64 weight = row.group * args.weight_group;
        const Tagged states{args.states, args.state_type};
        current_tap = load_number(args.weight, weight + (args.flipped ? 0 : args.width) * args.weight_tap);
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
            inputs[e] = taps[e] = 0.f;
            const int position = args.width - 1 - age(e);
            if (position < 0) continue;
            inputs[e] = load_number(states, row.state + position * args.state_position);
            taps[e] = load_number(args.weight, weight + (args.flipped ? age(e) + 1 : position) * args.weight_tap);
        }
    }
    __device__ __forceinline__ float sum(float u) const {
        float sum = 0.f;
#pragma unroll
        for (int e = 0; e < kElements; ++e) sum = fmaf(taps[e], inputs[e], sum);
        return fmaf(current_tap, u, group_sum<kLanes>(sum));
    }
    __device__ __forceinline__ void push(float u, int width) {
#pragma unroll
        for (int e = kElements - 1; e >= 0; --e) {
            // The first lane's comes from the last lane, which holds the younger end of the element before.
            float moved;
            if constexpr (kLanes == 1) {
                moved = e == 0 ? u : inputs[e > 0 ? e - 1 : 0];
            } else {
                const float from_last =
                    e == 0 ? u : __shfl_sync(0xffffffffu, inputs[e > 0 ? e - 1 : 0], threadIdx.x % 32 | (kLanes - 1));
                moved = __shfl_up_sync(0xffffffffu, inputs[e], 1);
                if (lane == 0) moved = from_last;
            }
            inputs[e] = age(e) < width ? moved : 0.f;
        }
    }
    __device__ __forceinline__ void store(const HyenaFirStepArgs& args, const HyenaStepRow& row) const {
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
            const int position = args.width - 1 - age(e);
            if (position >= 0)
                store_number(args.states, args.state_type, row.state + position * args.state_position, inputs[e]);
        }
    }
};

template <HyenaFirStepConfig kConfig>
__global__ void __launch_bounds__(kHyenaStepThreads) hyena_fir_step(const __grid_constant__ HyenaFirStepArgs args) {
    const int lane = threadIdx.x % kConfig.lanes;
    const HyenaStepRow row(args, static_cast<i64>(blockIdx.x) * kConfig.rows() + threadIdx.x / kConfig.lanes);
    if (row.exists && !row.runs) row.fill(args.out, args.tokens, lane, kConfig.lanes);

    FirWindow<kConfig> window{};
    window.lane = lane;
    float bias = 0.f, next = 0.f;
    const i64 from = row.first(args.u), to = row.first(args.out);
    if (row.runs) {
        next = load_number(args.u.values, from);
        if (args.bias.data != nullptr) bias = load_number(args.bias, row.channel * args.bias_channel);
        window.load(args, row);
    }
    for (int t = 0; t < args.tokens; ++t) {
        const float u = next;
        if (row.runs && t + 1 < args.tokens) next = load_number(args.u.values, from + (t + 1) * args.u.token);
        const float sum = window.sum(u);
        const float y = args.gated_bias ? fmaf(bias, u, sum) : sum + bias;
        if (row.runs && lane == 0)
            store_number(const_cast<void*>(args.out.values.data), args.out.values.type, to + t * args.out.token, y);
        window.push(u, args.width);
    }
    if (row.runs) window.store(args, row);
}

}  // namespace gdn_cuda::conv
