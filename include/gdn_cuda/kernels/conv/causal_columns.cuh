// The walk of kernels in which channels are neighbours in memory: conv/causal_conv_channels_last and conv/split_columns.
//
// A lane has some neighbouring channels and walks over a segment of tokens with the last W - 1 inputs in registers. The next
// rows are in flight: a row's registers take the row kRows behind it as soon as it is used. A warp has the channels of 32
// lanes, and a block segments that follow each other. Tokens are the same for all lanes, so a walk ends where a sequence does.
// With seq_idx, tokens that do not see all of those before them are computed again, one by one.
//
// A configuration has `io`, `taps`, `exists(tap, count)`, `sequences`, `threads()`, `rows()` and `channels()`, those of a
// block. What becomes of the sums is up to a type with
//     write(token, is_written, z)          all lanes of a warp call it, also those without channels and behind the last token
//     fill(token, number)                  of a token that is of no sequence
//     write_alone(sequences, token, id)    for seq_idx
#pragma once

#include <gdn_cuda/kernels/conv/causal_conv_runs.cuh>

namespace gdn_cuda::conv {

// In shared memory: weights and bias of a block's channels.
template <auto kConfig>
struct CausalSharedTaps {
    float weight[kConfig.taps][kConfig.channels()];
    float bias[kConfig.channels()];

    __device__ __forceinline__ void load(const CausalArgs& args, int first_channel) {
        constexpr int kNumbers = kConfig.taps + 1;
        for (int i = static_cast<int>(threadIdx.x); i < kConfig.channels() * kNumbers; i += kConfig.threads()) {
            const int c = i / kNumbers, k = i % kNumbers, of = first_channel + c;
            const bool exists = of < args.channels;
            if (k < kConfig.taps)
                weight[k][c] = exists ? load_tap(args, kConfig.taps, of, k) : 0.f;
            else
                bias[c] = exists && args.bias.data != nullptr ? load_number(args.bias, of * args.bias_channel) : 0.f;
        }
    }
};

// A warp's segment: blocks are numbered with groups of channels first, then segments, then batches.
template <auto kConfig>
struct CausalSegment {
    int batch, first_channel;
    i64 token;  // first
    int last;   // behind the last token

    __device__ __forceinline__ explicit CausalSegment(const CausalArgs& args) {
        constexpr int kWarps = kConfig.threads() / 32;
        const int groups = static_cast<int>(ceil_div(args.channels, kConfig.channels()));
        const int segments = static_cast<int>(ceil_div(args.tokens, i64{args.segment} * kWarps));
        const int block = static_cast<int>(blockIdx.x), in_row = block % (groups * segments);
        batch = block / (groups * segments);
        first_channel = in_row % groups * kConfig.channels();
        token = (static_cast<i64>(in_row / groups) * kWarps + threadIdx.x / 32) * args.segment;
        last = static_cast<int>(min(token + args.segment, i64{args.tokens}));
    }
};

template <auto kConfig>
struct CausalColumns {
    using T = Storage<kConfig.io>;
    static constexpr int kTaps = kConfig.taps, kVector = kConfig.channels() / 32, kRows = kConfig.rows(), kBefore = kTaps - 1;
    using Items = Vector<T, kVector, true>;
    using State = CausalSequences::State;

    const CausalArgs& args;
    const CausalSharedTaps<kConfig>& shared;
    int batch, channel, lane;  // channel: the first of the lane
    bool exists = channel < args.channels;
    const T* x = static_cast<const T*>(args.x.data) + batch * args.x.batch + channel;
    const T* next = x;  // the row to load next
    Items ahead[kRows];

    // The row behind those in flight; the last one again, where there is none.
    __device__ __forceinline__ void load_ahead(int row, int token, int last) {
        ahead[row].load_streaming(next);
        next += token + 1 < last ? args.x.token : 0;
    }
    __device__ __forceinline__ void load_first(int token, int last) {
        next = x + token * args.x.token;
        if (!exists) return;
#pragma unroll
        for (int i = 0; i < kRows; ++i) load_ahead(i, token + i, last);
    }
    // Tokens of one sequence, which begins at `begin` and has `state` in front of it.
    __device__ __forceinline__ void walk(int token, int last, int begin, const State& state, const auto& outputs) {
        float weight[kTaps][kVector], bias[kVector], before[kBefore][kVector];  // the last inputs, oldest first
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
            if (at >= begin && exists) row.load(x + at * args.x.token);
#pragma unroll
            for (int e = 0; e < kVector; ++e) {
                const bool is_of_state = kConfig.sequences && at < begin && exists;
                before[i][e] = is_of_state ? state.at(channel + e, begin - at) : row[e];
            }
        }
#pragma unroll 1
        for (; token < last; token += kRows) {
#pragma unroll
            for (int i = 0; i < kRows; ++i) {
                float z[kVector];
#pragma unroll
                for (int e = 0; e < kVector; ++e) {
                    z[e] = bias[e];
#pragma unroll
                    for (int k = 0; k < kBefore; ++k)
                        if (kConfig.exists(k, args.taps)) z[e] = fmaf(weight[k][e], before[k][e], z[e]);
#pragma unroll
                    for (int k = 0; k + 1 < kBefore; ++k) before[k][e] = before[k + 1][e];
                    before[kBefore - 1][e] = ahead[i][e];
                    z[e] = fmaf(weight[kBefore][e], before[kBefore - 1][e], z[e]);
                }
                if (exists) load_ahead(i, token + kRows + i, last);
                outputs.write(token + i, token + i < last && exists, z);
            }
        }
    }

    // ---- Sequences

    // Where rows have no seq_idx; the first rows are loaded.
    __device__ __forceinline__ void walk_runs(int token, int last, const auto& outputs) {
        const CausalRuns<kConfig.sequences> runs{{args.sequences, batch}, lane};
        bool is_loaded = true;
#pragma unroll 1
        while (token < last) {
            const CausalRun run = runs.at(token);
            const int end = min(run.end, last);
            if (run.exists()) {
                if (!is_loaded) load_first(token, end);
                walk(token, end, run.first, runs.state(run), outputs);
            } else if (exists) {
                const float number = run.place == Place::poison ? quiet_nan() : 0.f;
#pragma unroll 1
                for (int i = token; i < end; ++i) outputs.fill(i, number);
            }
            token = end;
            is_loaded = false;
        }
    }
    // With seq_idx: tokens that see a state, or not all of those before them, are written again. Each lane looks at a token,
    // and all lanes write those that are found.
    __device__ __forceinline__ void mend(int begin, int last, const auto& outputs) const {
        __syncwarp();  // stores of single numbers stay behind the vector stores to the same memory
        const CausalSequences sequences{args.sequences, batch};
#pragma unroll 1
        for (int first = begin; first < last; first += 32) {
            const int own = first + lane;
            unsigned apart = __ballot_sync(kAllLanes, own < last && !sequences.together(own - kBefore, own + 1));
#pragma unroll 1
            for (; apart != 0; apart &= apart - 1) {
                const int token = first + __ffs(static_cast<int>(apart)) - 1;
                if (exists) outputs.write_alone(sequences, token, sequences.id_of(token));
            }
        }
    }
};

// A block; `outputs_of(batch, channel)` makes a lane's outputs.
template <auto kConfig>
__device__ __forceinline__ void run_columns(const CausalArgs& args, CausalSharedTaps<kConfig>& shared, const auto& outputs_of) {
    const CausalSegment<kConfig> segment(args);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    CausalColumns<kConfig> columns{.args = args,
                                   .shared = shared,
                                   .batch = segment.batch,
                                   .channel = segment.first_channel + lane * CausalColumns<kConfig>::kVector,
                                   .lane = lane};
    const int token = static_cast<int>(segment.token);
    if (segment.token < args.tokens) columns.load_first(token, segment.last);
    shared.load(args, segment.first_channel);
    __syncthreads();
    if (segment.token >= args.tokens) return;
    const auto outputs = outputs_of(columns.batch, columns.channel);
    if constexpr (kConfig.sequences)
        if (args.sequences.seq_idx.data == nullptr) return columns.walk_runs(token, segment.last, outputs);
    columns.walk(token, segment.last, 0, {}, outputs);
    if constexpr (kConfig.sequences && requires { &decltype(outputs)::write_alone; })
        columns.mend(token, segment.last, outputs);
}

}  // namespace gdn_cuda::conv
