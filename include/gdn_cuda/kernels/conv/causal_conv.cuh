// conv/causal_conv: out[t] = act(bias + sum over k of weight[k] x[t - (W - 1) + k]) for few taps, tokens contiguous in
// memory.
//
// A warp has 128 16-byte vectors of a row, four per lane, and loads all of them before it uses the first. The inputs before
// a lane's vector are the end of the previous lane's vector, by a shuffle; lane 31 passes on its vector of the step before,
// so that lane 0 gets it. A row is computed as if it were one sequence without a state. Then the few tokens that see a state
// or fewer than W - 1 tokens are recomputed: with packed sequences, one lane per token recomputes the beginning of each
// sequence; with seq_idx, the block's warps, which have the same tokens of adjacent channels, find the mixed steps of 32
// vectors together and recompute those whole, with masks.
//
// Bound: memory, 4 bytes an element in bf16. At that rate an SM has 27 instructions for an element, of which this takes 20,
// or 24 with packed sequences. An SM needs 32 KB in flight: 64 bytes a thread, 16 warps or more.
#pragma once

#include <gdn_cuda/kernels/conv/causal_conv/seq_idx.cuh>

namespace gdn_cuda::conv {

template <CausalConvConfig kConfig>
struct CausalRows {
    using T = Storage<kConfig.io>;
    static constexpr int kTaps = kConfig.taps, kBefore = kTaps - 1, kVector = kConfig.vector(), kVectors = kConfig.vectors();
    static constexpr int kStep = 32 * kVector;  // tokens of 32 vectors
    using Items = Vector<T, kVector, true>;
    using Window = float[kBefore + kVector];
    using StepMasks = CausalStepMasks<kVectors, kStep, kBefore, false>;  // with seq_idx

    const CausalArgs& args;
    int batch, channel, lane;
    CausalSequences sequences{args.sequences, batch};
    const T* row = static_cast<const T*>(args.x.data) + batch * args.x.batch + channel * args.x.channel;
    T* out = static_cast<T*>(args.out.data) + batch * args.out.batch + channel * args.out.channel;
    float weight[kTaps], bias;
    Items in[kVectors], before;

    // Each lane loads one tap or the bias, for all lanes.
    __device__ __forceinline__ void load_weights() {
        static_assert(kTaps < 32);
        const int tap = lane - (kTaps - args.taps);
        const bool is_bias = lane == kTaps;
        const Tagged from = is_bias ? args.bias : args.weight;
        float own = 0.f;
        if (from.data != nullptr && tap >= 0 && lane <= kTaps)
            own =
                load_float(from, is_bias ? channel * args.bias_channel : channel * args.weight_channel + tap * args.weight_tap);
#pragma unroll
        for (int k = 0; k < kTaps; ++k) weight[k] = __shfl_sync(kAllLanes, own, k);
        bias = __shfl_sync(kAllLanes, own, kTaps);
    }
    __device__ __forceinline__ Items outputs(const Window& seen) const {
        Items y;
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
            float z = bias;
#pragma unroll
            for (int k = 0; k < kTaps; ++k)
                if (kConfig.exists(k, args.taps)) z = fmaf(weight[k], seen[i + k], z);
            y.set(i, output_of(z, args.silu));
        }
        return y;
    }

    // ---- With packed sequences, or states

    // Recomputes the tokens of a tile that see a state or fewer than W - 1 tokens, and fills those in no sequence.
    __device__ __forceinline__ void recompute_runs(int token, int end, CausalOffsets& near) const {
        const CausalRuns<kConfig.sequences> runs{sequences, lane};
        __syncwarp();  // keeps these element stores after the vector stores to the same addresses
#pragma unroll 1
        while (token < end) {
            const CausalRun run = runs.at(token, near);
            const int run_end = min(run.end, end);
            if (!run.exists()) {
                const T none = from_float<T>(run.place == Place::poison ? quiet_nan() : 0.f);
#pragma unroll 1
                for (int i = token + lane; i < run_end; i += 32) out[i] = none;
            } else if (run.first + kBefore > token && (run.first > 0 || sequences.has_states())) {
                recompute_first(run, runs.state(run), token, run_end);
            }
            token = run.end;
        }
    }
    // Recomputes the first tokens of a run, of those in [begin, end). The first kBefore lanes hold the inputs before the
    // run, the next kBefore lanes an input and its token's output.
    __device__ __forceinline__ void recompute_first(const CausalRun& run, const CausalSequences::State& state, int begin,
                                                    int end) const {
        static_assert(2 * kBefore <= 32);
        const int token = run.first - kBefore + lane;
        const bool has_output = lane >= kBefore && lane < 2 * kBefore && token < end;
        float input = 0.f, z = bias;
        if (lane < kBefore) input = state.at(channel, kBefore - lane);
        if (has_output) input = to_float(row[token]);
#pragma unroll
        for (int k = 0; k < kTaps; ++k) {
            const float seen = __shfl_sync(kAllLanes, input, (lane + 32 - kBefore + k) % 32);
            if (kConfig.exists(k, args.taps)) z = fmaf(weight[k], seen, z);
        }
        if (has_output && token >= begin) out[token] = from_float<T>(output_of(z, args.silu));
    }

    // ---- With seq_idx

    // Outputs of tokens that do not see all W - 1 tokens before them.
    __device__ __forceinline__ Items masked_outputs(const Window& seen, const HiddenFromLane<kVector, kBefore>& hidden) const {
        Items y;
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
            float z = bias;
#pragma unroll
            for (int k = 0; k < kTaps; ++k)
                if (kConfig.exists(k, args.taps) && !hidden.is(i, kBefore - k)) z = fmaf(weight[k], seen[i + k], z);
            y.set(i, hidden.is(i, 0) ? 0.f : output_of(z, args.silu));
        }
        return y;
    }
    // Recomputes mixed steps from memory, with the state before the row.
    __device__ __forceinline__ void recompute_mixed_steps(int begin, const StepMasks& masks) const {
        const Place place = sequences.place_of_sequence(batch);
#pragma unroll 1
        for (int i = 0; i < kVectors && begin + i * kStep < args.tokens; ++i) {
            if (masks.uniform[i]) continue;
            const int first = begin + i * kStep + lane * kVector;
            Items own, earlier, y;
            own.clear();
            earlier.clear();
            if (first < args.tokens) own.load(row + first);
            if (lane == 31 && first >= kStep) earlier.load(row + first - kStep);
            Window seen;
            load_window<kBefore>(seen, own, earlier, lane);
            if (first == 0 && sequences.has_states()) {
                const CausalSequences::State state = sequences.state_of(0);
#pragma unroll
                for (int k = 0; k < kBefore; ++k) seen[k] = state.at(channel, kBefore - k);
            }
            if (place == Place::run)
                y = masked_outputs(seen, masks.template for_lane<kVector>(i, lane));
            else
                y.fill(place == Place::poison ? quiet_nan() : 0.f);
            if (first < args.tokens) y.store_global(out + first);
        }
    }

    // ---- A tile, from token `begin` on

    __device__ __forceinline__ void load(int begin) {
        const int first = begin + lane * kVector;
        before.clear();
        if (lane == 31 && begin > 0) before.load_streaming(row + begin - kVector);
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            in[i].clear();
            if (first + i * kStep < args.tokens) in[i].load_streaming(row + first + i * kStep);
        }
    }
    __device__ __forceinline__ void run(int begin) {
        const int first = begin + lane * kVector;
        load_weights();
        CausalOffsets near;
        if constexpr (kConfig.sequences && !kConfig.indices)
            if (sequences.packed()) near = CausalRuns<true>{sequences, lane}.around(begin);
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            if (begin + i * kStep >= args.tokens) break;
            Window seen;
            load_window<kBefore>(seen, in[i], i == 0 ? before : in[i - 1], lane);
            const Items y = outputs(seen);
            if (first + i * kStep < args.tokens) y.store_global(out + first + i * kStep);
        }
        if constexpr (kConfig.sequences && !kConfig.indices)
            recompute_runs(begin, min(begin + kConfig.warp_tokens(), args.tokens), near);
    }
};

template <CausalConvConfig kConfig>
__global__ void __launch_bounds__(kConfig.row_threads(), kConfig.row_blocks())
    causal_conv(const __grid_constant__ CausalArgs args) {
    const int tiles = static_cast<int>(ceil_div(args.tokens, kConfig.warp_tokens()));
    const CausalRowPlace place(args.channels, tiles, kConfig.row_threads() / 32);
    const bool exists = place.channel < args.channels;
    if (!kConfig.indices && !exists) return;
    using Rows = CausalRows<kConfig>;
    Rows rows{args, place.batch, place.channel, static_cast<int>(threadIdx.x) % 32};
    const int begin = place.tile * kConfig.warp_tokens();
    if (exists) rows.load(begin);
    if constexpr (kConfig.indices) {
        __shared__ typename Rows::StepMasks masks;
        const int tokens = min(kConfig.warp_tokens(), args.tokens - begin);
        const bool all_mixed = rows.sequences.place_of_sequence(place.batch) != Place::run;
        masks.look_up(rows.sequences, begin, static_cast<int>(ceil_div(tokens, Rows::kStep)),
                      [&](int step) { return all_mixed || (step == 0 && rows.sequences.has_states()); });
        if (exists) rows.run(begin);
        __syncthreads();
        if (exists) rows.recompute_mixed_steps(begin, masks);
    } else {
        rows.run(begin);
    }
}

}  // namespace gdn_cuda::conv
