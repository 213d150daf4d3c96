// conv/causal_step_staged: the step of conv/causal_step where a channel's columns are contiguous, as in states (slots, D, W
// - 1), and the window is the last inputs.
//
// A lane owns 16 bytes of channels; their columns are as many consecutive 16-byte units. A warp's units are contiguous, so
// adjacent lanes copy adjacent units to shared memory by cp.async, and each lane then reads its own; new states go back the
// same way. So every access to the pool covers whole lines, although a channel has only a few bytes. Warps share nothing and
// sync by __syncwarp alone. While one sequence is computed, the next one's state is copied to the other of two buffers.
//
// Bound: the same as conv/causal_step.
#pragma once

#include <gdn_cuda/kernels/common/cp_async_ptx.cuh>
#include <gdn_cuda/kernels/common/dependent_launch.cuh>
#include <gdn_cuda/kernels/conv/causal_step/common.cuh>

namespace gdn_cuda::conv {

// Where a lane's unit is in the warp's buffer. With 2 or 4 units per lane, lanes that read their i-th unit would conflict in
// the same banks, so the units of every fourth or second lane are permuted.
template <int kUnits>
__device__ __forceinline__ int place_of_unit(int lane, int unit) {
    static_assert(kUnits <= 4);
    if constexpr (kUnits % 2 == 0) unit ^= (lane / (8 / kUnits)) & (kUnits - 1);
    return lane * kUnits + unit;
}

template <CausalStepStagedConfig kConfig>
struct StagedWarp {
    using Io = Storage<kConfig.io>;
    static constexpr int kUnits = kConfig.columns;
    using X = Vector<Io, kConfig.vector(), true>;

    StateUnit (&buffers)[2][32 * kUnits];
    i64 first_channel;  // the warp's first
    int lane, units;    // units of the warp's channels

    __device__ __forceinline__ i64 channel() const { return first_channel + lane * kConfig.vector(); }
    __device__ __forceinline__ bool works() const { return lane * kUnits < units; }
    // The warp's channels in a slot.
    __device__ __forceinline__ char* state(const CausalStepArgs& args, i64 slot) const {
        return static_cast<char*>(const_cast<void*>(args.state.values.data)) +
               (slot * args.state.slot + first_channel * kConfig.columns) * bytes_of(kConfig.io);
    }
    // Calls copy(place in the buffer, offset in memory) for the units that this lane copies.
    template <class Copy>
    __device__ __forceinline__ void each_unit(const Copy& copy) const {
#pragma unroll
        for (int i = 0; i < kUnits; ++i) {
            const int unit = i * 32 + lane;
            if (unit < units)
                copy(place_of_unit<kUnits>(unit / kUnits, unit % kUnits), unit * static_cast<int>(sizeof(StateUnit)));
        }
    }
    // Starts copying a sequence's state to a buffer and loading its first token.
    __device__ __forceinline__ StepSequence fetch(const CausalStepArgs& args, int n, int buffer, X& x) const {
        const StepSequence sequence = step_sequence(args, n);
        if (sequence.place == Place::run && sequence.length > 0) {
            const char* from = state(args, sequence.slot);
            each_unit([&](int place, int offset) { cp_async_16(buffers[buffer][place].bytes, from + offset); });
            if (works()) x.load(token(args, n, sequence, 0));
        }
        cp_async_fence();
        return sequence;
    }
    __device__ __forceinline__ const Io* token(const CausalStepArgs& args, int n, const StepSequence& sequence, int t) const {
        return static_cast<const Io*>(args.x.values.data) + n * args.x.sequence + (sequence.start + t) * args.x.token +
               channel();
    }
    // Writes the state from the buffer to its slot.
    __device__ __forceinline__ void store(const CausalStepArgs& args, i64 slot, int buffer) const {
        char* to = state(args, slot);
        each_unit([&](int place, int offset) {
            Raw<16> unit;
            unit.load(buffers[buffer][place].bytes);
            unit.store_global(to + offset);
        });
    }
};

// Computes the tokens of a sequence from and to the lane's units in the buffer.
template <CausalStepStagedConfig kConfig>
__device__ __forceinline__ void process_tokens(const CausalStepArgs& args, const StagedWarp<kConfig>& warp, int n,
                                               const StepSequence& sequence, int buffer,
                                               const StepTaps<kConfig.width, kConfig.vector()>& taps,
                                               typename StagedWarp<kConfig>::X x, Storage<kConfig.io>* out) {
    using X = typename StagedWarp<kConfig>::X;
    constexpr int kColumns = kConfig.columns, kVector = kConfig.vector(), kHistory = kConfig.width - 1;
    X units[kColumns];
    // Column j of channel v.
    const auto value = [&](int v, int j) -> auto& {
        return units[(v * kColumns + j) / kVector].items[(v * kColumns + j) % kVector];
    };
#pragma unroll
    for (int i = 0; i < kColumns; ++i)
        units[i].load(
            reinterpret_cast<const Storage<kConfig.io>*>(warp.buffers[buffer][place_of_unit<kColumns>(warp.lane, i)].bytes));
#pragma unroll 1
    for (int t = 0; t < sequence.length; ++t, out += args.out.token) {
        const auto history = [&](int k, int v) { return to_float(value(v, kColumns - kHistory + k)); };
        store_whole(taps.template output<kConfig.io>(history, x, args.silu), out);
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
#pragma unroll
            for (int j = 0; j + 1 < kColumns; ++j) value(v, j) = value(v, j + 1);
            value(v, kColumns - 1) = x.items[v];
        }
        if (t + 1 < sequence.length) x.load(warp.token(args, n, sequence, t + 1));
    }
#pragma unroll
    for (int i = 0; i < kColumns; ++i)
        units[i].store(
            reinterpret_cast<Storage<kConfig.io>*>(warp.buffers[buffer][place_of_unit<kColumns>(warp.lane, i)].bytes));
}

template <CausalStepStagedConfig kConfig>
__global__ void __launch_bounds__(kStepThreads, kStepBlocks) causal_step_staged(const __grid_constant__ CausalStepArgs args) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    using Io = Storage<kConfig.io>;
    constexpr int kVector = kConfig.vector();
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<CausalStepStagedSharedPlan<kConfig>*>(memory);

    const int warp_index = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const i64 first_channel = (static_cast<i64>(blockIdx.y) * kStepThreads + 32 * warp_index) * kVector;
    if (first_channel >= args.channels) return;
    const int lanes = static_cast<int>(min((args.channels - first_channel) / kVector, i64{32}));
    const StagedWarp<kConfig> warp{shared.units[warp_index], first_channel, lane, lanes * kConfig.columns};
    const int first = static_cast<int>(blockIdx.x) * args.block_sequences;
    const int count = min(args.block_sequences, args.sequences - first);

    typename StagedWarp<kConfig>::X x, next_x;
    using Taps = StepTaps<kConfig.width, kVector>;
    const i64 channel = warp.works() ? warp.channel() : first_channel;
    StepSequence sequence = warp.fetch(args, first, 0, x), next{};
    Taps taps;
    taps.finish(typename Taps::Loading(args, channel), args,
                channel);  // after `fetch`: before it, they would occupy registers during the copy
#pragma unroll 1
    for (int i = 0; i < count; ++i, sequence = next, x = next_x) {
        const int n = first + i, buffer = i % 2;
        if (i + 1 < count) {
            next = warp.fetch(args, n + 1, 1 - buffer, next_x);
            cp_async_wait<1>();
        } else {
            cp_async_wait<0>();
        }
        Io* const outputs = static_cast<Io*>(const_cast<void*>(args.out.values.data)) + n * args.out.sequence + warp.channel();
        Io* const out = outputs + sequence.start * args.out.token;
        if (sequence.place == Place::run && sequence.length > 0) {
            __syncwarp();  // every lane's copies have arrived
            if (warp.works()) process_tokens<kConfig>(args, warp, n, sequence, buffer, taps, x, out);
            __syncwarp();
            warp.store(args, sequence.slot, buffer);
            __syncwarp();  // the buffer is free
        } else if (sequence.place != Place::run && warp.works()) {
            fill_outputs<Io, kVector>(out, args.out.token, sequence.length, output_without_state(sequence.place));
        }
        const Tail tail = tail_after(args, n, sequence);
        if (warp.works()) fill_outputs<Io, kVector>(outputs + tail.start * args.out.token, args.out.token, tail.length, 0.f);
    }
}

}  // namespace gdn_cuda::conv
