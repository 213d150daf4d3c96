// conv/causal_conv: out[t] = act(bias + sum over k of weight[k] x[t - (W - 1) + k]) for few taps, where tokens are neighbours
// in memory.
//
// A warp has 128 vectors of 16 bytes of a row, four for each lane, which are all loaded before the first is used. The inputs
// before a lane's vector are the end of the vector of the lane before it, by a shuffle; the last lane passes on the one before,
// so that lane 0 gets the end of the 32 vectors before these. Steps with tokens of several sequences are computed once for
// each, under masks. With seq_idx, tokens that do not see all of those before them are computed again, one by one from memory.
//
// Bound: memory, 4 bytes an element for bf16. At that rate an SM has 27 instructions for an element, of which this takes 21. 32
// KB have to be in flight in an SM: 64 bytes a thread, 16 warps or more.
#pragma once

#include <gdn_cuda/kernels/conv/causal_conv_runs.cuh>

namespace gdn_cuda::conv {

template <CausalConvConfig kConfig>
struct CausalRows {
    using T = Storage<kConfig.io>;
    static constexpr int kTaps = kConfig.taps, kBefore = kTaps - 1, kVector = kConfig.vector(), kVectors = kConfig.vectors();
    static constexpr int kStep = 32 * kVector;  // tokens of a vector of each lane
    using Items = Vector<T, kVector, true>;
    using Window = float[kBefore + kVector];

    const CausalArgs& args;
    int batch, channel, lane;
    CausalSequences sequences{args.sequences, batch};
    float weight[kTaps], bias;

    __device__ __forceinline__ void load_weights() {
#pragma unroll
        for (int k = 0; k < kTaps; ++k) weight[k] = load_tap(args, kTaps, channel, k);
        bias = args.bias.data == nullptr ? 0.f : load_number(args.bias, channel * args.bias_channel);
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

    // Those of a step, which begins at token `begin` and ends before `end`. `run` is one of a step before, and becomes that of
    // the last token.
    __device__ __forceinline__ Items outputs(const Window& seen, CausalRun& run, int begin, int end) const {
        const CausalRuns<kConfig.sequences> runs{sequences, lane};
        if (run.end <= begin) run = runs.at(begin);
        if (runs.template together<kBefore>(run, begin, end)) return outputs(seen);
        const int first = begin + lane * kVector;
        Items y;
        y.clear();
#pragma unroll 1
        while (true) {
            float old[kBefore];
            Window of_run;
            const CausalSequences::State state = runs.state(run);
#pragma unroll
            for (int i = 0; i < kBefore; ++i) old[i] = state.at(channel, kBefore - i);
#pragma unroll
            for (int i = 0; i < kBefore + kVector; ++i) of_run[i] = seen[i];
            mask_window(of_run, run, first, old);
            Items each = outputs(of_run);
            if (!run.exists()) each.fill(run.place == Place::poison ? quiet_nan() : 0.f);
#pragma unroll
            for (int i = 0; i < kVector; ++i)
                if (run.contains(first + i)) y.items[i] = each.items[i];
            if (run.end >= end) return y;
            run = runs.at(run.end);
        }
    }

    // ---- With seq_idx

    // As CausalSequences::together, by all lanes.
    __device__ __forceinline__ bool together(int first, int end) const {
        const i64 id = sequences.id_of(max(first, 0));
        bool same = id >= 0 && !(first < 0 && sequences.has_states());
#pragma unroll 4
        for (int i = max(first, 0) + lane; i < end; i += 32) same &= sequences.id_of(i) == id;
        return __all_sync(kAllLanes, same);
    }
    __device__ __forceinline__ void mend(int begin, T* out) const {
        if (together(begin - kBefore, min(begin + kConfig.warp_tokens(), args.tokens))) return;
#pragma unroll 1
        for (int first = begin + lane * kVector; first < min(begin + kConfig.warp_tokens(), args.tokens); first += kStep) {
            if (sequences.together(first - kBefore, first + kVector)) continue;
#pragma unroll 1
            for (int token = first; token < first + kVector; ++token) {
                const i64 id = sequences.id_of(token);
                out[token] = from_float<T>(output_of_token<T>(args, sequences, channel, token, id));
            }
        }
    }

    __device__ __forceinline__ void run(int tile) {
        const T* const x = static_cast<const T*>(args.x.data) + batch * args.x.batch + channel * args.x.channel;
        T* const out = static_cast<T*>(args.out.data) + batch * args.out.batch + channel * args.out.channel;
        const int begin = tile * kConfig.warp_tokens(), first = begin + lane * kVector;
        const bool by_index = kConfig.sequences && args.sequences.seq_idx.data != nullptr;
        Items in[kVectors], before;
        before.clear();
        if (lane == 31 && begin > 0) before.load_streaming(x + begin - kVector);
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            in[i].clear();
            if (first + i * kStep < args.tokens) in[i].load_streaming(x + first + i * kStep);
        }
        load_weights();
        CausalRun of_sequence{};
#pragma unroll(kConfig.sequences ? 1 : kVectors)
        for (int i = 0; i < kVectors; ++i) {
            const int from = begin + i * kStep;
            if (from >= args.tokens) break;
            Window seen;
            load_window<kBefore>(seen, in[0], before, lane);
            Items y;
            if (kConfig.sequences && !by_index)
                y = outputs(seen, of_sequence, from, min(from + kStep, args.tokens));
            else
                y = outputs(seen);
            if (first + i * kStep < args.tokens) y.store_global(out + first + i * kStep);
            before = in[0];
#pragma unroll
            for (int next = 1; next < kVectors; ++next) in[next - 1] = in[next];
        }
        if constexpr (kConfig.sequences)
            if (by_index) mend(begin, out);
    }
};

template <CausalConvConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.row_blocks())
    causal_conv(const __grid_constant__ CausalArgs args) {
    const int tiles = static_cast<int>(ceil_div(args.tokens, kConfig.warp_tokens()));
    const CausalRowPlace place(args.channels, tiles, kConfig.threads() / 32);
    if (place.channel >= args.channels) return;
    CausalRows<kConfig>{args, place.batch, place.channel, static_cast<int>(threadIdx.x) % 32}.run(place.tile);
}

}  // namespace gdn_cuda::conv
