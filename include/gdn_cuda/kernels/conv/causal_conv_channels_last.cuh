// conv/causal_conv_channels_last: out[t] = act(bias + sum over k of weight[k] x[t - (W - 1) + k]) for few taps, where
// channels are neighbours in memory.
//
// A lane has four channels and walks over a segment of tokens with the last W - 1 inputs in registers. The
// next 8 rows are in flight: a row's registers take the row 8 behind it as soon as it is used. A warp has 128
// neighbouring channels, and a block four segments that follow each other. Tokens are the same for all lanes, so a walk ends
// where a sequence does. With seq_idx, tokens that do not see all of those before them are computed again, one by one.
//
// Shared memory: weights and bias, which the block loads once.
//
// Bound: memory, 4 bytes an element for bf16; the W - 1 rows in front of a segment come from the L2 cache. 16 warps of an SM
// have 64 KB in flight.
#pragma once

#include <gdn_cuda/kernels/conv/causal_conv_runs.cuh>

namespace gdn_cuda::conv {

template <CausalConvConfig kConfig>
struct CausalSharedTaps {
    float weight[kConfig.taps][kConfig.channels()];
    float bias[kConfig.channels()];
};

template <CausalConvConfig kConfig>
struct CausalColumns {
    using T = Storage<kConfig.io>;
    static constexpr int kTaps = kConfig.taps, kVector = kConfig.lane_channels(), kRows = kConfig.rows(), kBefore = kTaps - 1;
    using Items = Vector<T, kVector, true>;

    const CausalArgs& args;
    const CausalSharedTaps<kConfig>& shared;
    int batch, channel, lane;  // channel: the first of the vector
    bool exists;               // the channels
    const T* x;
    T* out;
    Items ahead[kRows];
    const T* next;  // the row to load next

    // What is in front of a sequence.
    struct Old {
        CausalSequences::State state;
        int channel = 0;

        __device__ __forceinline__ float at(int e, int back) const { return kConfig.sequences ? state.at(channel + e, back) : 0.f; }
    };

    // The row behind those in flight; the last one again, where there is none.
    __device__ __forceinline__ void load_ahead(int row, int token, int last) {
        ahead[row].load_streaming(next);
        next += token + 1 < last ? args.x.token : 0;
    }
    __device__ __forceinline__ Items activated(const float (&z)[kVector]) const {
        Items y;
#pragma unroll
        for (int e = 0; e < kVector; ++e) y.set(e, output_of(z[e], args.silu));
        return y;
    }
    __device__ __forceinline__ void load_first(int token, int last) {
        next = x + token * args.x.token;
#pragma unroll
        for (int i = 0; i < kRows; ++i) load_ahead(i, token + i, last);
    }
    // Tokens of one sequence, which begins at `begin` and has `old` in front of it.
    __device__ __forceinline__ void walk(int token, int last, int begin, const Old& old) {
        float weight[kTaps][kVector], bias[kVector];
        float before[kBefore][kVector];  // the last inputs, oldest first
#pragma unroll
        for (int e = 0; e < kVector; ++e) {
            bias[e] = shared.bias[lane * kVector + e];
#pragma unroll
            for (int k = 0; k < kTaps; ++k) weight[k][e] = shared.weight[k][lane * kVector + e];
        }
#pragma unroll
        for (int i = 0; i < kBefore; ++i) {
            const int at = token - kBefore + i;
            Items row;
            row.clear();
            if (at >= begin) row.load(x + at * args.x.token);
#pragma unroll
            for (int e = 0; e < kVector; ++e) before[i][e] = at < begin ? old.at(e, begin - at) : row[e];
        }
        T* to = out + token * args.out.token;
#pragma unroll 1
        for (; token < last; token += kRows) {
#pragma unroll
            for (int i = 0; i < kRows; ++i) {
                float z[kVector];
#pragma unroll
                for (int e = 0; e < kVector; ++e) {
                    z[e] = bias[e];
#pragma unroll
                    for (int k = 0; k < kBefore; ++k) z[e] = fmaf(weight[k][e], before[k][e], z[e]);
#pragma unroll
                    for (int k = 0; k + 1 < kBefore; ++k) before[k][e] = before[k + 1][e];
                    before[kBefore - 1][e] = ahead[i][e];
                    z[e] = fmaf(weight[kBefore][e], before[kBefore - 1][e], z[e]);
                }
                load_ahead(i, token + kRows + i, last);
                if (token + i < last) activated(z).store(to);
                to += args.out.token;
            }
        }
    }

    // ---- Sequences

    __device__ __forceinline__ void walk_runs(int token, int last) {
        const CausalRuns<kConfig.sequences> runs{{args.sequences, batch}, lane};
        bool loaded = true;  // the first rows
#pragma unroll 1
        while (token < last) {
            const CausalRun run = runs.at(token);
            const int end = min(run.end, last);
            if (exists && run.exists()) {
                if (!loaded) load_first(token, end);
                walk(token, end, run.first, {runs.state(run), channel});
            } else if (exists) {
                fill(token, end, run.place);
            }
            token = end;
            loaded = false;
        }
    }
    __device__ __forceinline__ void fill(int token, int last, Place place) const {
        Items y;
        y.fill(place == Place::poison ? quiet_nan() : 0.f);
#pragma unroll 1
        for (; token < last; ++token) y.store(out + token * args.out.token);
    }

    // ---- With seq_idx: tokens that see a state, or not all of those before them, are written again

    // Each lane looks at a token, and all lanes write those that are found.
    __device__ __forceinline__ void mend(int begin, int last) const {
        __syncwarp();  // stores of single numbers stay behind the vector stores to the same memory
        const CausalSequences sequences{args.sequences, batch};
#pragma unroll 1
        for (int first = begin; first < last; first += 32) {
            const int own = first + lane;
            unsigned apart = __ballot_sync(0xffffffffu, own < last && !sequences.together(own - kBefore, own + 1));
#pragma unroll 1
            for (; apart != 0; apart &= apart - 1) {
                const int token = first + __ffs(static_cast<int>(apart)) - 1;
                const i64 id = sequences.id_of(token);
#pragma unroll 1
                for (int e = 0; e < kVector && exists; ++e)
                    out[token * args.out.token + e] =
                        from_float<T>(output_of_token<T>(args, sequences, channel + e, token, id));
            }
        }
    }
};

template <CausalConvConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.sequences           ? 4
                                                     : bytes_of(kConfig.io) == 4 ? 4
                                                                                 : 6)
    causal_conv_channels_last(const __grid_constant__ CausalArgs args) {
    using Columns = CausalColumns<kConfig>;
    using T = Storage<kConfig.io>;
    constexpr int kWarps = kConfig.threads() / 32, kChannels = kConfig.channels();
    __shared__ CausalSharedTaps<kConfig> shared;
    const int groups = static_cast<int>(ceil_div(args.channels, kChannels));
    const int segments = static_cast<int>(ceil_div(args.tokens, i64{args.segment} * kWarps));
    const int block = static_cast<int>(blockIdx.x), in_row = block % (groups * segments), batch = block / (groups * segments);
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
    const int first_channel = in_row % groups * kChannels, channel = first_channel + lane * Columns::kVector;
    const i64 segment = static_cast<i64>(in_row / groups) * kWarps + thread / 32;
    const i64 token = segment * args.segment;
    const int last = static_cast<int>(min(token + args.segment, i64{args.tokens}));

    Columns columns{.args = args, .shared = shared, .batch = batch, .channel = channel, .lane = lane};
    columns.exists = channel < args.channels;
    columns.x = static_cast<const T*>(args.x.data) + batch * args.x.batch + channel;
    columns.out = static_cast<T*>(args.out.data) + batch * args.out.batch + channel;
    if (token < args.tokens && columns.exists) columns.load_first(static_cast<int>(token), last);
    for (int i = thread; i < kChannels * (kConfig.taps + 1); i += kConfig.threads()) {
        const int c = i / (kConfig.taps + 1), k = i % (kConfig.taps + 1), of = first_channel + c;
        if (of >= args.channels) continue;
        if (k < kConfig.taps)
            shared.weight[k][c] = load_number(args.weight, of * args.weight_channel + k * args.weight_tap);
        else
            shared.bias[c] = args.bias.data == nullptr ? 0.f : load_number(args.bias, of * args.bias_channel);
    }
    __syncthreads();
    if (token >= args.tokens) return;
    const int begin = static_cast<int>(token);
    if (kConfig.sequences && args.sequences.seq_idx.data == nullptr) return columns.walk_runs(begin, last);
    if (columns.exists) columns.walk(begin, last, 0, {});
    if constexpr (kConfig.sequences) columns.mend(begin, last);
}

}  // namespace gdn_cuda::conv
