// conv/causal_step_any: the step of conv/causal_step for every width up to 32, and for tensors of any strides and dtypes.
//
// A thread has one channel of one sequence and iterates over its tokens. The last W - 1 inputs are fp32 in shared memory, in
// a ring where each token replaces the oldest value; taps come from L1. Adjacent threads have adjacent channels.
//
// Bound: the state's bytes if channels are contiguous in memory. Otherwise each access touches a sector of its own, the rest
// of which L1 keeps.
#pragma once

#include <gdn_cuda/kernels/conv/causal_step/common.cuh>

namespace gdn_cuda::conv {

// A thread's ring. The i-th value of the history is at position (at + i) modulo `length`.
template <CausalStepAnyConfig kConfig>
struct StepRing {
    float (&values)[kMaxStepWidth - 1][kConfig.threads];
    int length, at = 0;

    __device__ __forceinline__ float& operator[](int i) const { return values[i][threadIdx.x]; }
    __device__ __forceinline__ int after(int i) const { return i + 1 == length ? 0 : i + 1; }
    __device__ __forceinline__ void push(float x) {
        if (length == 0) return;
        (*this)[at] = x;
        at = after(at);
    }
};

// Moving values through fp32 keeps their bits: every 16-bit value is exact in fp32.
template <CausalStepAnyConfig kConfig>
__device__ __forceinline__ void read_history(const CausalStepArgs& args, const StepSequence& sequence, i64 state,
                                             const StepRing<kConfig>& ring) {
    const auto column = [&](int i) { return state + i * args.state.column; };
#pragma unroll 4
    for (int i = 0; i < ring.length; ++i) ring[i] = load_float(args.state.values, column(sequence.history_column(args, i)));
    const int count = sequence.moved(args), history_to = sequence.history_to(args);
#pragma unroll 1
    for (int i = 0; i < count; ++i)
        store_float(args.state.values, column(i),
                    load_float(args.state.values, state + (i + i64{sequence.length}) * args.state.column));
#pragma unroll 1
    for (int i = max(0, -history_to); i < ring.length; ++i) store_float(args.state.values, column(i + history_to), ring[i]);
}

template <CausalStepAnyConfig kConfig>
__device__ __forceinline__ float token_sum(const CausalStepArgs& args, i64 channel, float bias, const StepRing<kConfig>& ring,
                                           float x) {
    float y = bias;
    i64 tap = channel * args.weight_channel;
    int i = ring.at;
#pragma unroll 4
    for (int k = 0; k < ring.length; ++k, i = ring.after(i), tap += args.weight_tap)
        y = fmaf(load_float(args.weight, tap), ring[i], y);
    return fmaf(load_float(args.weight, tap), x, y);
}

template <CausalStepAnyConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads) causal_step_any(const __grid_constant__ CausalStepArgs args) {
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<CausalStepAnySharedPlan<kConfig>*>(memory);
    const int n = static_cast<int>(blockIdx.x);
    const i64 channel = static_cast<i64>(blockIdx.y) * kConfig.threads + threadIdx.x;
    if (channel >= args.channels) return;
    const auto at = [&](const CausalStepArgs::Rows& rows, i64 token) {
        return n * rows.sequence + token * rows.token + channel * rows.channel;
    };

    const StepSequence sequence = step_sequence(args, n);
    if (sequence.place != Place::run) {
        for (int t = 0; t < sequence.length; ++t)
            store_float(args.out.values, at(args.out, sequence.start + t), output_without_state(sequence.place));
    } else if (sequence.length > 0) {
        const i64 state = sequence.slot * args.state.slot + channel * args.state.channel;
        StepRing<kConfig> ring{shared.ring, args.width - 1};
        read_history<kConfig>(args, sequence, state, ring);
        const float bias = args.bias.data == nullptr ? 0.f : load_float(args.bias, channel * args.bias_channel);
        const int kept_from = sequence.kept_from(args);
        int column = sequence.token_to(args);
#pragma unroll 1
        for (int t = 0; t < sequence.length; ++t, column = sequence.column_after(args, column)) {
            const float x = load_float(args.x.values, at(args.x, sequence.start + t));
            if (t >= kept_from) store_float(args.state.values, state + column * args.state.column, x);
            const float y = token_sum<kConfig>(args, channel, bias, ring, x);
            store_float(args.out.values, at(args.out, sequence.start + t), activated(y, args.silu));
            ring.push(x);
        }
    }
    const Tail tail = tail_after(args, n, sequence);
    for (int t = 0; t < tail.length; ++t) store_float(args.out.values, at(args.out, tail.start + t), 0.f);
}

}  // namespace gdn_cuda::conv
