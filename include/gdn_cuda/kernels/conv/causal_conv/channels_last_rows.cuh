// The walk of kernels in which channels are neighbours in memory: conv/causal_conv_channels_last and conv/split_columns.
//
// A lane has some neighbouring channels and walks over a segment of tokens with the last W - 1 inputs, its weights and its bias
// in registers. The next rows are in flight: a row's registers take the row kRows behind it as soon as it is used. A warp has
// the channels of 32 lanes, and a block the channels of its warps, which walk over the same rows: DRAM pages that one warp
// opens serve the others as well. Tokens are the same for all lanes, so a walk ends where a sequence does. With seq_idx, tokens
// that do not see all of those before them are computed again, one by one.
//
// A configuration has `io`, `taps`, `exists(tap, count)`, `sequences`, `threads()`, `rows()` and `channels()`, those of a warp.
// What becomes of the sums is up to a type with
//     start(token)                         the token that is written next
//     write(is_written, z)                 all lanes of a warp call it, also those without channels and behind the last token
//     fill(number)                         instead of `write`, for a token that is of no sequence
//     write_alone(sequences, token, id)    for seq_idx, where a configuration has `indices`
#pragma once

#include <gdn_cuda/kernels/conv/causal_conv/seq_idx.cuh>

namespace gdn_cuda::conv {

// A warp's segment: warps are numbered with groups of channels first, then segments, then batches.
template <auto kConfig>
struct CausalSegment {
    int batch, first_channel;
    int token, last;  // the first, and the one behind the last

    __device__ __forceinline__ explicit CausalSegment(const CausalArgs& args) {
        constexpr unsigned kWarps = kConfig.threads() / 32;
        const unsigned groups = (static_cast<unsigned>(args.channels) - 1) / kConfig.channels() + 1;
        const unsigned segments = (static_cast<unsigned>(args.tokens) - 1) / args.segment + 1;
        const unsigned warp = blockIdx.x * kWarps + threadIdx.x / 32, row = warp / groups;
        first_channel = static_cast<int>(warp % groups) * kConfig.channels();
        batch = static_cast<int>(row / segments);
        token = static_cast<int>(row % segments) * args.segment;
        last = static_cast<int>(min(i64{token} + args.segment, i64{args.tokens}));
    }
};

// Numbers that are in flight together.
template <int kCount>
struct Numbers {
    unsigned bits[kCount] = {};

    __device__ __forceinline__ void load(const Tagged& from, const auto& place_of, const auto& exists) {
        if (from.type == DType::f32)
            load_bits(static_cast<const unsigned*>(from.data), place_of, exists);
        else
            load_bits(static_cast<const unsigned short*>(from.data), place_of, exists);
    }

  private:
    __device__ __forceinline__ void load_bits(const auto* from, const auto& place_of, const auto& exists) {
#pragma unroll
        for (int i = 0; i < kCount; ++i)
            if (exists(i)) bits[i] = from[place_of(i)];
    }
};

// Whether it is a seq_idx that tells sequences.
template <auto kConfig>
constexpr bool has_indices() {
    if constexpr (requires { kConfig.indices; })
        return kConfig.indices;
    else
        return false;
}

template <auto kConfig>
struct CausalColumns {
    using T = Storage<kConfig.io>;
    static constexpr int kTaps = kConfig.taps, kVector = kConfig.channels() / 32, kRows = kConfig.rows(), kBefore = kTaps - 1;
    using Items = Vector<T, kVector, true>;
    using State = CausalSequences::State;

    const CausalArgs& args;
    CausalSegment<kConfig> segment{args};
    int batch = segment.batch, lane = static_cast<int>(threadIdx.x) % 32;
    int channel = segment.first_channel + lane * kVector;  // the first of the lane
    bool exists = channel < args.channels;
    const T* x = static_cast<const T*>(args.x.data) + batch * args.x.batch + channel;
    const T* next = x;  // the row to load next
    Items ahead[kRows], old[kBefore];
    float weight[kTaps][kVector], bias[kVector];

    __device__ __forceinline__ explicit CausalColumns(const CausalArgs& of) : args(of) {}

    // Warps of the last block may be too many.
    __device__ __forceinline__ bool has_tokens() const { return batch < args.batches; }

    __device__ __forceinline__ void load_ahead(int row) {
        ahead[row].load_streaming(next);
        next += args.x.token;
    }
    __device__ __forceinline__ void load_rows(int token, int last) {
        next = x + token * args.x.token;
#pragma unroll
        for (int i = 0; i < kRows; ++i)
            if (exists && token + i < last) load_ahead(i);
    }
    // The rows in front of a segment, those from `begin` on.
    __device__ __forceinline__ void load_old(int token, int begin) {
#pragma unroll
        for (int i = 0; i < kBefore; ++i) {
            const int at = token - kBefore + i;
            old[i].clear();
            if (at >= begin && exists) old[i].load(x + at * args.x.token);
        }
    }
    // Lanes without channels take the last ones' numbers.
    __device__ __forceinline__ void load_taps() {
        Numbers<kTaps * kVector> weights;
        Numbers<kVector> biases;
        const int of = min(channel, args.channels - kVector);
        const i64 first = of * args.weight_channel - (kTaps - args.taps) * args.weight_tap;
        weights.load(
            args.weight, [&](int i) { return first + i / kTaps * args.weight_channel + i % kTaps * args.weight_tap; },
            [&](int i) { return kConfig.exists(i % kTaps, args.taps); });
        if (args.bias.data != nullptr)
            biases.load(args.bias, [&](int e) { return (of + e) * args.bias_channel; }, [](int) { return true; });
#pragma unroll
        for (int e = 0; e < kVector; ++e) {
            bias[e] = number_of(biases.bits[e], args.bias.type);
#pragma unroll
            for (int k = 0; k < kTaps; ++k) weight[k][e] = number_of(weights.bits[e * kTaps + k], args.weight.type);
        }
    }
    // The oldest row leaves.
    __device__ __forceinline__ static void push(float (&before)[kBefore][kVector], const float (&row)[kVector]) {
#pragma unroll
        for (int e = 0; e < kVector; ++e) {
#pragma unroll
            for (int k = 0; k + 1 < kBefore; ++k) before[k][e] = before[k + 1][e];
            before[kBefore - 1][e] = row[e];
        }
    }
    // Tokens of one sequence, which begins at `begin` and has `state` in front of it.
    __device__ __forceinline__ void walk(int token, int last, int begin, const State& state, auto& outputs) {
        float before[kBefore][kVector];  // the last inputs, oldest first
        if constexpr (kConfig.sequences) load_old(token, begin);
#pragma unroll
        for (int i = 0; i < kBefore; ++i) to_floats(before[i], old[i]);
        if (kConfig.sequences && state.values.data != nullptr)
#pragma unroll 1
            for (int at = token - kBefore; at < token; ++at) {  // once round
                float oldest[kVector];
#pragma unroll
                for (int e = 0; e < kVector; ++e)
                    oldest[e] = at < begin && exists ? state.at(channel + e, begin - at) : before[0][e];
                push(before, oldest);
            }
        load_taps();  // behind the look-ups of sequences and states, which need registers as well
        outputs.start(token);
        const int end = exists ? last : token;  // lanes without channels neither load nor store
#pragma unroll 1
        for (; token < last; token += kRows) {
            const int written = end - token, loaded = written - kRows;  // how many tokens are left, compared with constants
#pragma unroll
            for (int i = 0; i < kRows; ++i) {
                float z[kVector], x_of[kVector];
                to_floats(x_of, ahead[i]);
                if (i < loaded) load_ahead(i);
#pragma unroll
                for (int e = 0; e < kVector; ++e) {
                    z[e] = bias[e];
#pragma unroll
                    for (int k = 0; k < kBefore; ++k)
                        if (kConfig.exists(k, args.taps)) z[e] = fmaf(weight[k][e], before[k][e], z[e]);
                    z[e] = fmaf(weight[kBefore][e], x_of[e], z[e]);
                }
                push(before, x_of);
                outputs.write(i < written, z);
            }
        }
    }

    // ---- Sequences

    // Where rows have no seq_idx; the first rows are loaded.
    __device__ __forceinline__ void walk_runs(auto& outputs) {
        const CausalRuns<kConfig.sequences> runs{{args.sequences, batch}, lane};
        int token = segment.token;
#pragma unroll 1
        while (token < segment.last) {
            const CausalRun run = runs.at(token);
            const int end = min(run.end, segment.last);
            if (run.exists()) {
                if (token > segment.token) load_rows(token, end);
                walk(token, end, run.first, runs.state(run), outputs);
            } else if (exists) {
                const float number = run.place == Place::poison ? quiet_nan() : 0.f;
                outputs.start(token);
#pragma unroll 1
                for (int i = token; i < end; ++i) outputs.fill(number);
            }
            token = end;
        }
    }
    // With seq_idx: tokens that see a state, or not all of those before them, are written again. Each lane looks at a token,
    // and all lanes write those that are found.
    __device__ __forceinline__ void mend(const auto& outputs) const {
        __syncwarp();  // stores of single numbers stay behind the vector stores to the same memory
        const CausalSequences sequences{args.sequences, batch};
        const bool runs = sequences.place_of_sequence(batch) == Place::run;
        const int behind_state = sequences.has_states() ? kBefore : 0;  // the first token that does not see it
#pragma unroll 1
        for (int first = segment.token; first < segment.last; first += 32) {
            const int own = first + lane;
            const bool hides = !runs || own < behind_state || hidden_by_index<kBefore>(sequences, own) != 0;
            unsigned apart = __ballot_sync(kAllLanes, own < segment.last && hides);
#pragma unroll 1
            for (; apart != 0; apart &= apart - 1) {
                const int token = first + __ffs(static_cast<int>(apart)) - 1;
                if (exists) outputs.write_alone(sequences, token, sequences.id_of(token));
            }
        }
    }

    // ---- A segment

    __device__ __forceinline__ void load() {
        load_rows(segment.token, segment.last);
        if constexpr (!kConfig.sequences) load_old(segment.token, 0);
    }
    __device__ __forceinline__ void run(auto outputs) {
        constexpr bool kIndices = has_indices<kConfig>();
        if constexpr (kConfig.sequences && !kIndices) return walk_runs(outputs);
        walk(segment.token, segment.last, 0, {}, outputs);
        if constexpr (kIndices) mend(outputs);
    }
};

}  // namespace gdn_cuda::conv
