// conv/causal_step: one or a few tokens of every sequence through a causal depthwise convolution, states of a pool updated
// in place. Channels are contiguous in x, in the output, and in each column of the state.
//
//     y[t] = silu(bias + Σ_k weight[k] history_and_x[t + k])
//
// A lane owns 16 bytes of a column and iterates over a sequence's tokens with the last W - 1 columns in registers. A block
// has the same channels of several sequences: it loads the taps once, and prefetches the state and the first token of the
// next sequence while it computes one.
//
// Bound: the state's bytes, read and written once, and x and out. With few sequences: the latency of the slot and then of
// the state, during which the taps are loaded.
#pragma once

#include <gdn_cuda/kernels/common/dependent_launch.cuh>
#include <gdn_cuda/kernels/conv/causal_step/common.cuh>

namespace gdn_cuda::conv {

template <CausalStepConfig kConfig>
struct StepTypes {
    using Io = Storage<kConfig.io>;
    using State = Storage<kConfig.state>;
    using X = Vector<Io, kConfig.vector(), true>;
    using Column = Vector<State, kConfig.vector(), true>;
};

// A token as a column of the state: the same bits if the dtypes are equal.
template <CausalStepConfig kConfig>
__device__ __forceinline__ typename StepTypes<kConfig>::Column column_of(const typename StepTypes<kConfig>::X& x) {
    if constexpr (kConfig.io == kConfig.state) {
        return x;
    } else {
        typename StepTypes<kConfig>::Column column;
#pragma unroll
        for (int v = 0; v < kConfig.vector(); ++v) column.set(v, x[v]);
        return column;
    }
}

// A sequence with its history and its first token in flight.
template <CausalStepConfig kConfig>
struct LoadedSequence {
    using Types = StepTypes<kConfig>;
    StepSequence sequence;
    typename Types::Column history[kConfig.width - 1];
    typename Types::X x;
    typename Types::State* state;  // at the lane's channels

    __device__ __forceinline__ void load(const CausalStepArgs& args, int n, i64 channel) {
        sequence = step_sequence(args, n);
        if (sequence.place != Place::run || sequence.length == 0) return;
        state = static_cast<typename Types::State*>(const_cast<void*>(args.state.values.data)) +
                sequence.slot * args.state.slot + channel;
#pragma unroll
        for (int i = 0; i < kConfig.width - 1; ++i)
            history[i].load(state + sequence.history_column(args, i) * args.state.column);
        x.load(token(args, n, channel, 0));
    }
    __device__ __forceinline__ const typename Types::Io* token(const CausalStepArgs& args, int n, i64 channel, int t) const {
        return static_cast<const typename Types::Io*>(args.x.values.data) + n * args.x.sequence +
               (sequence.start + t) * args.x.token + channel;
    }
};

// Moves the columns that new tokens shift. A column is read before it is overwritten.
template <CausalStepConfig kConfig>
__device__ __forceinline__ void push_columns(const CausalStepArgs& args, const LoadedSequence<kConfig>& loaded) {
    const int count = loaded.sequence.moved(args), history_to = loaded.sequence.history_to(args);
#pragma unroll 1
    for (int column = 0; column < count; ++column) {
        typename StepTypes<kConfig>::Column moved;
        moved.load(loaded.state + (column + i64{loaded.sequence.length}) * args.state.column);
        store_whole(moved, loaded.state + column * args.state.column);
    }
#pragma unroll
    for (int i = 0; i < kConfig.width - 1; ++i)
        if (i + history_to >= 0) store_whole(loaded.history[i], loaded.state + (i + history_to) * args.state.column);
}

template <CausalStepConfig kConfig>
__device__ __forceinline__ void process_tokens(const CausalStepArgs& args, LoadedSequence<kConfig>& loaded,
                                               const StepTaps<kConfig.width, kConfig.vector()>& taps, int n, i64 channel,
                                               typename StepTypes<kConfig>::Io* out) {
    using Types = StepTypes<kConfig>;
    constexpr int kHistory = kConfig.width - 1;
    const StepSequence& sequence = loaded.sequence;
    const int kept_from = sequence.kept_from(args);
    int column = sequence.token_to(args);
#pragma unroll 1
    for (int t = 0; t < sequence.length; ++t, out += args.out.token) {
        typename Types::X later;
        if (t + 1 < sequence.length) later.load(loaded.token(args, n, channel, t + 1));
        const auto as_column = column_of<kConfig>(loaded.x);
        if (t >= kept_from) store_whole(as_column, loaded.state + column * args.state.column);
        column = sequence.column_after(args, column);
        const auto history = [&](int k, int v) { return loaded.history[k][v]; };
        store_whole(taps.template output<kConfig.io>(history, loaded.x, args.silu), out);
#pragma unroll
        for (int i = 0; i + 1 < kHistory; ++i) loaded.history[i] = loaded.history[i + 1];
        loaded.history[kHistory - 1] = as_column;
        loaded.x = later;
    }
}

// The common case, one token and a state of W - 1 columns, in a third of the instructions.
template <CausalStepConfig kConfig>
__device__ __forceinline__ void process_single_token(const CausalStepArgs& args, const LoadedSequence<kConfig>& loaded,
                                                     const StepTaps<kConfig.width, kConfig.vector()>& taps,
                                                     typename StepTypes<kConfig>::Io* out) {
    typename StepTypes<kConfig>::State* to = loaded.state;
#pragma unroll
    for (int i = 1; i < kConfig.width - 1; ++i, to += args.state.column) store_whole(loaded.history[i], to);
    store_whole(column_of<kConfig>(loaded.x), to);
    const auto history = [&](int k, int v) { return loaded.history[k][v]; };
    store_whole(taps.template output<kConfig.io>(history, loaded.x, args.silu), out);
}

template <CausalStepConfig kConfig>
__global__ void __launch_bounds__(kStepThreads, kStepBlocks) causal_step(const __grid_constant__ CausalStepArgs args) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    using Io = typename StepTypes<kConfig>::Io;
    const i64 channel = (static_cast<i64>(blockIdx.y) * kStepThreads + threadIdx.x) * kConfig.vector();
    if (channel >= args.channels) return;
    const int first = static_cast<int>(blockIdx.x) * args.block_sequences;
    const int count = min(args.block_sequences, args.sequences - first);

    using Taps = StepTaps<kConfig.width, kConfig.vector()>;
    const typename Taps::Loading loading(args, channel);  // issued before the wait for a slot
    LoadedSequence<kConfig> now, next;
    now.load(args, first, channel);
    Taps taps;
    taps.finish(loading, args, channel);
#pragma unroll 1
    for (int i = 0; i < count; ++i, now = next) {
        const int n = first + i;
        if (i + 1 < count) next.load(args, n + 1, channel);
        Io* const outputs = static_cast<Io*>(const_cast<void*>(args.out.values.data)) + n * args.out.sequence + channel;
        Io* const out = outputs + now.sequence.start * args.out.token;
        if (now.sequence.place != Place::run) {
            fill_outputs<Io, kConfig.vector()>(out, args.out.token, now.sequence.length,
                                               output_without_state(now.sequence.place));
        } else if (args.plain) {
            process_single_token<kConfig>(args, now, taps, out);
            continue;
        } else if (now.sequence.length > 0) {
            push_columns<kConfig>(args, now);
            process_tokens<kConfig>(args, now, taps, n, channel, out);
        }
        const Tail tail = tail_after(args, n, now.sequence);
        fill_outputs<Io, kConfig.vector()>(outputs + tail.start * args.out.token, args.out.token, tail.length, 0.f);
    }
}

}  // namespace gdn_cuda::conv
