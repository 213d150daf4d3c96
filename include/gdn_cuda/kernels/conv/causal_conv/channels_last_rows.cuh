// The forward pass over channels-last rows, for conv/causal_conv_channels_last and layers/split_columns.
//
// A lane owns some contiguous channels and iterates over a segment of tokens. It keeps the last W - 1 inputs, its weights
// and its bias in registers and prefetches the next kRows rows: a row's registers are reloaded as soon as the row is used. A
// warp covers the channels of its 32 lanes, and the warps of a block read adjacent channels of the same rows, so they share
// open DRAM pages. A segment is convolved as if its row were one sequence; then tokens that do not see all W - 1 tokens before
// them are recomputed one by one.
//
// A configuration has `io`, `taps`, `exists(tap, count)`, `sequences`, `threads()`, `rows()` and `channels()` (of a warp).
// The sums go to an Outputs object with
//     skip(tokens)                         moves on by some tokens, or back; it begins at token 0
//     write(is_written, z)                 called by all lanes of a warp, also by those without channels or past the last token
//     write_token(sequences, token, id)    for configurations with `sequences`, called by all lanes: computes a token anew;
//                                          moves on by one token, as `write` does
#pragma once

#include <gdn_cuda/kernels/common/opaque.cuh>
#include <gdn_cuda/kernels/conv/causal_conv/seq_idx.cuh>

namespace gdn_cuda::conv {

// A warp's segment. The channel group varies fastest from warp to warp, then the segment, then the batch.
template <auto kConfig>
struct CausalSegment {
    int batch, first_channel;
    int token, last;  // the segment's tokens: [token, last)

    __device__ __forceinline__ explicit CausalSegment(const CausalArgs& args, unsigned thread = threadIdx.x) {
        constexpr unsigned kWarps = kConfig.threads() / 32;
        const unsigned groups = (static_cast<unsigned>(args.channels) - 1) / kConfig.channels() + 1;
        const unsigned segments = (static_cast<unsigned>(args.tokens) - 1) / args.segment + 1;
        const unsigned warp = blockIdx.x * kWarps + thread / 32, row = warp / groups;
        first_channel = static_cast<int>(warp % groups) * kConfig.channels();
        batch = static_cast<int>(row / segments);
        token = static_cast<int>(row % segments) * args.segment;
        last = static_cast<int>(min(i64{token} + args.segment, i64{args.tokens}));
    }
};

// Whether seq_idx gives the sequences.
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
    int channel = segment.first_channel + lane * kVector;  // the lane's first
    bool exists = channel < args.channels;
    const T* x = static_cast<const T*>(args.x.data) + batch * args.x.batch + channel;
    const T* next = x;  // the row to prefetch next
    Items prefetched[kRows], history[kBefore];
    float weight[kTaps][kVector], bias[kVector];

    __device__ __forceinline__ explicit CausalColumns(const CausalArgs& call) : args(call) {}

    // The last block may have more warps than there are segments.
    __device__ __forceinline__ bool has_tokens() const { return batch < args.batches; }

    __device__ __forceinline__ void prefetch(int row) {
        prefetched[row].load_streaming(next);
        next += args.x.token;
    }
    __device__ __forceinline__ void load_rows(int token, int last) {
        next = x + token * args.x.token;
#pragma unroll
        for (int i = 0; i < kRows; ++i)
            if (exists && token + i < last) prefetch(i);
    }
    // Loads the kBefore rows before `token`; rows before the first are zeros.
    __device__ __forceinline__ void load_history(int token) {
#pragma unroll
        for (int i = 0; i < kBefore; ++i) {
            const int at = token - kBefore + i;
            history[i].clear();
            if (at >= 0 && exists) history[i].load(x + at * args.x.token);
        }
    }
    // Lanes without channels load the taps of the last channels.
    __device__ __forceinline__ void load_taps() {
        RawElements<kTaps * kVector> weights{};
        RawElements<kVector> biases{};
        const int c = min(channel, args.channels - kVector);
        const i64 first = c * args.weight_channel - (kTaps - args.taps) * args.weight_tap;
        weights.load(
            args.weight, [&](int i) { return first + i / kTaps * args.weight_channel + i % kTaps * args.weight_tap; },
            [&](int i) { return kConfig.exists(i % kTaps, args.taps); });
        if (args.bias.data != nullptr)
            biases.load(args.bias, [&](int e) { return (c + e) * args.bias_channel; }, [](int) { return true; });
#pragma unroll
        for (int e = 0; e < kVector; ++e) {
            bias[e] = biases.to_float(e, args.bias.type);
#pragma unroll
            for (int k = 0; k < kTaps; ++k) weight[k][e] = weights.to_float(e * kTaps + k, args.weight.type);
        }
    }
    __device__ __forceinline__ static void push(float (&before)[kBefore][kVector], const float (&row)[kVector]) {
#pragma unroll
        for (int e = 0; e < kVector; ++e) {
#pragma unroll
            for (int k = 0; k + 1 < kBefore; ++k) before[k][e] = before[k + 1][e];
            before[kBefore - 1][e] = row[e];
        }
    }
    // Replaces zeros by the state of the row's first sequence.
    __device__ __forceinline__ void load_first_state(float (&before)[kBefore][kVector]) const {
        const CausalRuns<kConfig.sequences> runs{{args.sequences, batch}, lane};
        const State state = runs.state(runs.at(0));
#pragma unroll 1
        for (int back = kBefore; back > 0; --back) {  // rotates `before` once
            float oldest[kVector];
#pragma unroll
            for (int e = 0; e < kVector; ++e) oldest[e] = exists ? state.at(channel + e, back) : 0.f;
            push(before, oldest);
        }
    }
    // Convolves the segment's tokens as if the row were one sequence. Returns where that leaves `outputs`.
    __device__ __forceinline__ int process(auto& outputs) {
        int token = segment.token;
        const int last = segment.last;
        float before[kBefore][kVector];  // the last inputs, oldest first
#pragma unroll
        for (int i = 0; i < kBefore; ++i) to_floats(before[i], history[i]);
        if constexpr (kConfig.sequences && !has_indices<kConfig>())
            if (token == 0 && args.sequences.initial.values.data != nullptr) load_first_state(before);
        load_taps();  // after the lookup of the state, which needs registers as well
        outputs.skip(token);
        const int end = exists ? last : token;  // lanes without channels neither load nor store
#pragma unroll 1
        for (; token < last; token += kRows) {
            const int written = end - token, loaded = written - kRows;  // tokens left to write and to load
#pragma unroll
            for (int i = 0; i < kRows; ++i) {
                float z[kVector], now[kVector];
                to_floats(now, prefetched[i]);
                if (i < loaded) prefetch(i);
#pragma unroll
                for (int e = 0; e < kVector; ++e) {
                    z[e] = bias[e];
#pragma unroll
                    for (int k = 0; k < kBefore; ++k)
                        if (kConfig.exists(k, args.taps)) z[e] = fmaf(weight[k][e], before[k][e], z[e]);
                    z[e] = fmaf(weight[kBefore][e], now[e], z[e]);
                }
                push(before, now);
                outputs.write(i < written, z);
            }
        }
        return token;
    }

    // ---- Sequences

    // Without seq_idx: recomputes the first tokens of sequences that begin within the row, and writes those of none.
    __device__ __forceinline__ void recompute_runs(auto& outputs, int at) const {
        __syncwarp();  // keeps these element stores after the vector stores to the same addresses
        const CausalRuns<kConfig.sequences> runs{{args.sequences, opaque(batch)}, lane};  // opaque: to save a register
        CausalOffsets near;
#pragma unroll 1
        for (int token = segment.token, end; token < segment.last; token = end) {
            const CausalRun run = runs.at(token, near);
            end = min(run.end, segment.last);
            const int last = !run.exists() ? end : run.first > 0 ? min(end, run.first + kBefore) : token;
            const i64 id = run.exists() ? run.sequence : run.place == Place::poison ? kPoisoned : kNoSequence;
            outputs.skip(token - at);
#pragma unroll 1
            for (at = token; at < last; ++at) outputs.write_token(runs.sequences, at, id);
        }
    }
    // With seq_idx: recomputes the tokens that see a state or not all W - 1 tokens before them. Each lane tests one token,
    // then all lanes write the tokens found.
    __device__ __forceinline__ void recompute_masked(auto& outputs, int at) const {
        __syncwarp();  // keeps these element stores after the vector stores to the same addresses
        const CausalSequences sequences{args.sequences, batch};
        const bool runs = sequences.place_of_sequence(batch) == Place::run;
        const int after_state = sequences.has_states() ? kBefore : 0;  // the first token that does not see the state
#pragma unroll 1
        for (int first = segment.token; first < segment.last; first += 32) {
            const int own = first + lane;
            const bool hides = !runs || own < after_state || hidden_by_index<kBefore>(sequences, own) != 0;
            unsigned masked = __ballot_sync(kAllLanes, own < segment.last && hides);
#pragma unroll 1
            for (; masked != 0; masked &= masked - 1) {
                const int token = first + __ffs(static_cast<int>(masked)) - 1;
                outputs.skip(token - at);
                outputs.write_token(sequences, token, sequences.id_of(token));
                at = token + 1;
            }
        }
    }

    // ---- The state

    // Replaces the state by the last inputs, if the row is one sequence and this its first segment. Oldest inputs first: they
    // may come from later positions of the state. `thread`: threadIdx.x, opaque to the compiler, which otherwise keeps in
    // registers what depends on it.
    __device__ __forceinline__ static void write_final_state(const CausalArgs& args, unsigned thread) {
        const CausalSegment<kConfig> segment(args, thread);
        const int batch = segment.batch, channel = segment.first_channel + static_cast<int>(thread) % 32 * kVector;
        const CausalSequences sequences{args.sequences, batch};
        i64 slot;
        if (segment.token > 0 || channel >= args.channels || !sequences.runs(batch, slot)) return;
        const T* const x = static_cast<const T*>(args.x.data) + batch * args.x.batch + channel;
        const State state = sequences.state_of(0);
        const CausalStates& to = args.sequences.initial;
        constexpr int kAtOnce = 4;  // whose loads are in flight together
#pragma unroll 1
        for (int first = 0; first < to.positions; first += kAtOnce) {
            float inputs[kAtOnce][kVector];
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                const int token = args.tokens - to.positions + first + i;
                Items row;
                row.clear();
                if (first + i < to.positions && token >= 0) row.load(x + token * args.x.token);
                to_floats(inputs[i], row);
                if (token < 0)
#pragma unroll
                    for (int e = 0; e < kVector; ++e) inputs[i][e] = state.at(channel + e, -token);
            }
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i)
                if (first + i < to.positions)
#pragma unroll
                    for (int e = 0; e < kVector; ++e)
                        store_float(to.values, slot * to.slot + (channel + e) * to.channel + (first + i) * to.position,
                                    inputs[i][e]);
        }
    }

    // ---- A segment

    __device__ __forceinline__ void load() {
        load_rows(segment.token, segment.last);
        load_history(segment.token);
    }
    __device__ __forceinline__ void run(auto outputs) {
        constexpr bool kIndices = has_indices<kConfig>();
        const int at = process(outputs);
        if constexpr (kIndices)
            recompute_masked(outputs, at);
        else if constexpr (kConfig.sequences)
            recompute_runs(outputs, at);
    }
};

}  // namespace gdn_cuda::conv
