// conv/hyena_fir_step: one or several tokens of a causal FIR filter per channel, after the K − 1 inputs that a state in a
// pool holds:
//
//     y_t = Σ_k w_k window_{t+k} + bias (· u_t if gated),   window = (state, u),   state ← the last K − 1 of window
//
// A channel has 1 to 32 lanes of a warp. They hold the current token's window in registers, by age: age 0 is the previous
// token. From token to token every value moves to the next age, within a lane or by a shuffle from the previous lane, so
// taps stay where they are, and several tokens give the bits of single ones. Taps are loaded once for all sequences of a
// block; a sequence's state is loaded while the previous one is computed.
//
// This kernel takes states of any dtype and strides, and any K; conv/hyena_fir_step_staged takes contiguous fp32 states.
//
// Bound: memory, 2 (K − 1) state values a row; with few sequences the latency of two dependent loads (slot, state).
#pragma once

#include <gdn_cuda/kernels/common/vector.cuh>
#include <gdn_cuda/kernels/conv/hyena_step/block.cuh>

namespace gdn_cuda::conv {

// A channel of a sequence.
struct FirRow {
    bool runs = false;
    Place place = Place::run;
    int sequence = 0, channel = 0;
    i64 state = 0;  // offset of its first value in the pool, in elements

    __device__ __forceinline__ i64 at(const HyenaTokens& x, int token) const {
        return sequence * x.sequence + channel * x.channel + token * x.token;
    }
    __device__ __forceinline__ float load(const HyenaTokens& x, int token) const {
        return runs ? load_float(x.values, at(x, token)) : 0.f;
    }
    __device__ __forceinline__ void store(const HyenaTokens& to, int token, float x) const {
        store_float(to.values, at(to, token), x);
    }
    // Fills the output of a sequence that does not run.
    __device__ __forceinline__ void fill(const HyenaTokens& out, int tokens, int lane, int lanes) const {
        const float value = place == Place::skip ? 0.f : quiet_nan();
        for (int t = lane; t < tokens; t += lanes) store(out, t, value);
    }
};

template <HyenaFirStepConfig kConfig>
struct FirStep {
    static constexpr int kLanes = kConfig.lanes, kElements = kConfig.elements;

    const HyenaFirStepArgs& args;
    bool exists;  // threads past the last channel take part in shuffles, and neither load nor store
    int channel;
    const int lane = threadIdx.x % kLanes;
    float taps[kElements]{}, current_tap = 0.f, bias = 0.f;

    // By age; 0 past the window.
    using Inputs = float[kElements];
    __device__ __forceinline__ int age(int e) const { return e * kLanes + lane; }
    __device__ __forceinline__ int position(int e) const { return args.width - 1 - age(e); }  // in the state

    __device__ __forceinline__ FirRow row_of(int sequence) const {
        FirRow row{exists, Place::run, sequence, channel};
        if (!exists) return row;
        i64 slot;
        row.place = slot_of(args, sequence, slot);
        row.runs = row.place == Place::run;
        if (row.runs) row.state = slot * args.state_slot + channel * args.state_channel;
        return row;
    }
    __device__ __forceinline__ void load_filter() {
        if (!exists) return;
        const i64 weight = channel / args.group_channels * args.weight_group;
        if (args.bias.data != nullptr) bias = load_float(args.bias, channel * args.bias_channel);
        current_tap = load_float(args.weight, weight + (args.flipped ? 0 : args.width) * args.weight_tap);
#pragma unroll
        for (int e = 0; e < kElements; ++e)
            if (position(e) >= 0)
                taps[e] = load_float(args.weight, weight + (args.flipped ? age(e) + 1 : position(e)) * args.weight_tap);
    }

    struct Loaded {
        unsigned inputs[kElements]{};
        float u = 0.f;  // the first token's
    };
    __device__ __forceinline__ void load(Loaded& to, const FirRow& row) const {
        if (!row.runs) return;
        to.u = row.load(args.u, 0);
        const Tagged states{args.states, args.state_type};
#pragma unroll
        for (int e = 0; e < kElements; ++e)
            if (position(e) >= 0) to.inputs[e] = load_raw(states, row.state + position(e) * args.state_position);
    }

    __device__ __forceinline__ float output(const Inputs& inputs, float u) const {
        float sum = 0.f;
#pragma unroll
        for (int e = 0; e < kElements; ++e) sum = fmaf(taps[e], inputs[e], sum);
        sum = fmaf(current_tap, u, group_sum<kLanes>(sum));
        return args.gated_bias ? fmaf(bias, u, sum) : sum + bias;
    }
    __device__ __forceinline__ void push(Inputs& inputs, float u) const {
#pragma unroll
        for (int e = kElements - 1; e >= 0; --e) {
            // The first lane gets the last lane's value of the previous element, which is one token younger.
            float moved;
            if constexpr (kLanes == 1) {
                moved = e == 0 ? u : inputs[e > 0 ? e - 1 : 0];
            } else {
                const float from_last =
                    e == 0 ? u : __shfl_sync(0xffffffffu, inputs[e > 0 ? e - 1 : 0], threadIdx.x % 32 | (kLanes - 1));
                moved = __shfl_up_sync(0xffffffffu, inputs[e], 1);
                if (lane == 0) moved = from_last;
            }
            inputs[e] = age(e) < args.width ? moved : 0.f;
        }
    }
    __device__ __forceinline__ void run(const FirRow& row, const Loaded& loaded) const {
        float u = loaded.u;
        Inputs inputs;
#pragma unroll
        for (int e = 0; e < kElements; ++e) inputs[e] = to_float(loaded.inputs[e], args.state_type);
        for (int t = 0;; ++t) {
            const float y = output(inputs, u);
            if (row.runs && lane == 0) row.store(args.out, t, y);
            if (t + 1 == args.tokens) break;
            push(inputs, u);
            u = row.load(args.u, t + 1);
        }
        if (row.runs) store(row, inputs, u);
    }
    // Stores the window after the last token: every input one age older, and the token.
    __device__ __forceinline__ void store(const FirRow& row, const Inputs& inputs, float u) const {
#pragma unroll
        for (int e = 0; e < kElements; ++e)
            if (position(e) > 0) store_state(row, position(e) - 1, inputs[e]);
        if (lane == 0 && args.width > 0) store_state(row, args.width - 1, u);
    }
    __device__ __forceinline__ void store_state(const FirRow& row, int position, float x) const {
        store_float(args.states, args.state_type, row.state + position * args.state_position, x);
    }
};

template <HyenaFirStepConfig kConfig>
__global__ void __launch_bounds__(kHyenaStepThreads, kConfig.elements > 8 ? 3 : 6)
    hyena_fir_step(const __grid_constant__ HyenaFirStepArgs args) {
    const HyenaStepBlock block(args, kConfig.rows());
    const i64 channel = block.first_channel + threadIdx.x / kConfig.lanes;
    const bool exists = channel < args.channels;
    FirStep<kConfig> step{args, exists, exists ? static_cast<int>(channel) : 0};
    FirRow next = step.row_of(block.first);
    typename FirStep<kConfig>::Loaded following;
    step.load(following, next);
    step.load_filter();
    for (int sequence = block.first; sequence < block.end; ++sequence) {
        const FirRow row = next;
        const typename FirStep<kConfig>::Loaded loaded = following;
        if (sequence + 1 < block.end) {
            next = step.row_of(sequence + 1);
            step.load(following, next);
        }
        if (exists && !row.runs) row.fill(args.out, args.tokens, step.lane, kConfig.lanes);
        step.run(row, loaded);
    }
}

}  // namespace gdn_cuda::conv
