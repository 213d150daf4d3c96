// conv/causal_conv_backward_columns: gradients of a causal convolution of few taps, channels contiguous in memory. With z
// before the activation,
//
//     dz[t] = grad[t] act'(z[t])
//     dx[j] = sum over k of weight[k] dz[j + W - 1 - k]
//     dweight[k] = sum over t of dz[t] x[t - (W - 1) + k]
//
// A lane owns contiguous channels and iterates over a segment of tokens, with the last W - 1 inputs in registers as in
// conv/causal_conv_channels_last, and the partial dx of the last W - 1 tokens. A dx is complete W - 1 tokens later, so a
// pass continues that far past its segment. Rows of inputs and gradients are prefetched. All lanes are at the same token, so
// a pass ends where a sequence ends; with seq_idx it continues, with masks for the few mixed steps, which are found first.
// Weight sums stay in registers until the end of the segment; then the block's warps, which have consecutive segments, add
// theirs up through shared memory: no atomics, and the same bits in every run.
//
// Shared memory: weights and bias, which the block loads once, and the warps' sums.
//
// Bound: memory, 6 bytes an element in bf16. At that rate an SM has 41 instructions for an element, of which this takes 28.
#pragma once

#include <gdn_cuda/kernels/conv/causal_conv/backward_plan.cuh>
#include <gdn_cuda/kernels/conv/causal_conv/seq_idx.cuh>

namespace gdn_cuda::conv {

template <CausalConvConfig kConfig>
struct CausalColumnsBackwardShared {
    float weight[kConfig.taps][kConfig.channels_backward()];
    float bias[kConfig.channels_backward()];
    float sums[kConfig.threads() / 32][kConfig.taps + 1][kConfig.channels_backward()];  // for weights, then for bias
};

template <CausalConvConfig kConfig>
struct CausalColumnsBackward {
    using T = Storage<kConfig.io>;
    static constexpr int kTaps = kConfig.taps, kBefore = kTaps - 1, kVector = kConfig.lane_channels_backward();
    static constexpr int kRows = kConfig.rows_backward();
    // With seq_idx a pass has steps of kRows tokens; mixed ones have masks.
    static constexpr int kMostSteps = (kConfig.longest_segment() + kBefore - 1) / kRows + 1;
    using MixedSteps = unsigned long long;
    static_assert(kMostSteps <= 64);
    using Items = Vector<T, kVector, true>;

    const CausalBackwardArgs& args;
    CausalColumnsBackwardShared<kConfig>& shared;
    int batch, channel, lane;  // the lane's first channel
    const CausalArgs& forward = args.forward;
    CausalRuns<kConfig.sequences, kConfig.sequences && !kConfig.indices> runs{{forward.sequences, batch}, lane};
    const T* x = static_cast<const T*>(forward.x.data) + batch * forward.x.batch + channel;
    const T* grad = static_cast<const T*>(args.grad.data) + batch * args.grad.batch + channel;
    T* out = static_cast<T*>(forward.out.data) + batch * forward.out.batch + channel;
    float weight[kTaps][kVector], bias[kVector];
    float dweight[kTaps][kVector], dbias[kVector];
    float before[kBefore][kVector];  // the last inputs, oldest first
    float dx[kBefore][kVector];      // partial dx of these tokens
    Items in[kRows], grads[kRows];
    const T *next, *next_grad;  // the rows to prefetch next

    __device__ __forceinline__ bool exists(int tap) const { return kConfig.exists(tap, forward.taps); }
    __device__ __forceinline__ void load_weights() {
#pragma unroll
        for (int e = 0; e < kVector; ++e) {
            bias[e] = shared.bias[lane * kVector + e];
            dbias[e] = 0.f;
#pragma unroll
            for (int k = 0; k < kTaps; ++k) {
                weight[k][e] = shared.weight[k][lane * kVector + e];
                dweight[k][e] = 0.f;
            }
        }
    }
    // Loads the next rows; there are none from `end` on.
    __device__ __forceinline__ void prefetch(int slot, int token, int end) {
        if (token < end) {
            in[slot].load(next);
            grads[slot].load(next_grad);
        }
        next += forward.x.token;
        next_grad += args.grad.token;
    }
    __device__ __forceinline__ void load_first(int token, int end) {
        next = x + token * forward.x.token;
        next_grad = grad + token * args.grad.token;
#pragma unroll
        for (int i = 0; i < kRows; ++i) prefetch(i, token + i, end);
    }

    // Processes a token and returns the complete dx of the token W - 1 before. `own`: the token is in the segment, not after
    // it. Bit m of `hidden`: it does not see the token m before; bit 0: it belongs to no sequence.
    template <bool kSilu>
    __device__ __forceinline__ Items row(const Items& x_now, const Items& g, bool own, unsigned hidden) {
        float d[kVector], now[kVector];
        to_floats(d, g);
        to_floats(now, x_now);
        const auto seen = [&](float value, int k) { return hidden >> (kBefore - k) & 1 ? 0.f : value; };
#pragma unroll
        for (int e = 0; e < kVector; ++e) {
            if constexpr (kSilu) {
                float z = bias[e];
#pragma unroll
                for (int k = 0; k < kBefore; ++k)
                    if (exists(k)) z = fmaf(weight[k][e], seen(before[k][e], k), z);
                d[e] *= silu_slope(fmaf(weight[kBefore][e], now[e], z));
            }
            d[e] = seen(d[e], kBefore);
        }
        if (own) {
#pragma unroll
            for (int e = 0; e < kVector; ++e) {
                dbias[e] += d[e];
#pragma unroll
                for (int k = 0; k < kBefore; ++k) dweight[k][e] = fmaf(d[e], seen(before[k][e], k), dweight[k][e]);
                dweight[kBefore][e] = fmaf(d[e], seen(now[e], kBefore), dweight[kBefore][e]);
            }
        }
        Items complete;
#pragma unroll
        for (int e = 0; e < kVector; ++e) {
            complete.set(e, exists(0) ? fmaf(weight[0][e], seen(d[e], 0), dx[0][e]) : dx[0][e]);
#pragma unroll
            for (int k = 0; k + 1 < kBefore; ++k) {
                dx[k][e] = exists(k + 1) ? fmaf(weight[k + 1][e], seen(d[e], k + 1), dx[k + 1][e]) : dx[k + 1][e];
                before[k][e] = before[k + 1][e];
            }
            dx[kBefore - 1][e] = weight[kBefore][e] * d[e];
            before[kBefore - 1][e] = now[e];
        }
        return complete;
    }
    // The mixed steps of a pass over these tokens. Each lane of the warp tests two steps.
    __device__ __forceinline__ MixedSteps find_mixed(int first, int last, HiddenBits* hidden) const {
        const int end = min(last + kBefore, forward.tokens);
        unsigned mixed[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int step = half * 32 + lane, from = first + step * kRows;
            bool uniform = true;
            if (from < end) {
                const i64 index = runs.sequences.index_of(from - kBefore);
                uniform = index >= 0;
#pragma unroll
                for (int i = 1; i < kBefore + kRows; ++i)
                    uniform &= runs.sequences.index_of(min(from - kBefore + i, end - 1)) == index;
                if (!uniform)
#pragma unroll 1
                    for (int i = 0; i < kRows; ++i)
                        hidden[step * kRows + i] = hidden_by_index<kBefore>(runs.sequences, from + i);
            }
            mixed[half] = __ballot_sync(kAllLanes, !uniform);
        }
        __syncwarp();
        return mixed[0] | MixedSteps{mixed[1]} << 32;
    }
    // Tokens of a run. Its first rows are in flight.
    template <bool kSilu>
    __device__ __forceinline__ void process(int first, int last, const CausalRun& run, MixedSteps mixed = 0,
                                            const HiddenBits* hidden = nullptr) {
        const int end = min(last + kBefore, run.end);  // where the pass ends
        load_before(first, run);
        T* to = out + (first - kBefore) * forward.out.token;
        const auto step = [&](int slot, int token, bool own, unsigned hidden_bits) {
            const Items complete = row<kSilu>(in[slot], grads[slot], own, hidden_bits);
            prefetch(slot, token + kRows, end);
            if (token >= first + kBefore) complete.store(to);
            to += forward.out.token;
        };
        int token = first;
#pragma unroll 1
        for (; token < end; token += kRows, mixed >>= 1, hidden += kRows) {
            const bool is_mixed = kConfig.indices && (mixed & 1) != 0;
            if (token + kRows <= last && !is_mixed) {
#pragma unroll
                for (int i = 0; i < kRows; ++i) step(i, token + i, true, 0);
            } else {
#pragma unroll
                for (int i = 0; i < kRows; ++i)
                    if (token + i < end) step(i, token + i, token + i < last, is_mixed ? hidden[i] : 0);
            }
        }
        if (end == run.end) store_last(first, last, run, to);
    }
    // Loads the inputs before the first token of a pass.
    __device__ __forceinline__ void load_before(int first, const CausalRun& run) {
        const CausalSequences::State state = runs.state(run);
#pragma unroll
        for (int i = 0; i < kBefore; ++i) {
            const int at = first - kBefore + i;
            Items row;
            row.clear();
            if (at >= run.first) row.load(x + at * forward.x.token);
#pragma unroll
            for (int e = 0; e < kVector; ++e) {
                before[i][e] = kConfig.sequences && at < run.first ? state.at(channel + e, run.first - at) : row[e];
                dx[i][e] = 0.f;
            }
        }
    }
    // Stores dx of the last W - 1 tokens of a run; the first goes to `to`.
    __device__ __forceinline__ void store_last(int first, int last, const CausalRun& run, T* to) const {
#pragma unroll
        for (int i = 0; i < kBefore; ++i) {
            const int token = run.end - kBefore + i;
            Items complete;
#pragma unroll
            for (int e = 0; e < kVector; ++e) complete.set(e, dx[i][e] + final_state_gradient(run, channel + e, i));
            if (token >= first && token < last) complete.store(to);
            to += forward.out.token;
        }
    }
    // The gradient of the final state with respect to the i-th of the last W - 1 tokens.
    __device__ __forceinline__ float final_state_gradient(const CausalRun& run, int c, int i) const {
        const CausalStates& states = args.grad_states;
        const int position = i - (kBefore - states.positions);
        if (!kConfig.sequences || states.values.data == nullptr || position < 0) return 0.f;
        if constexpr (kConfig.indices) {  // the final state holds tokens of the last token's sequence
            const i64 index = runs.sequences.index_of(run.end - kBefore + i);
            if (index < 0 || index != runs.sequences.index_of(run.end - 1)) return 0.f;
        }
        return load_float(states.values, run.sequence * states.slot + c * states.channel + position * states.position);
    }
    __device__ __forceinline__ void fill(int token, int last) const {
        Items zeros;
        zeros.clear();
#pragma unroll 1
        for (; token < last; ++token) zeros.store(out + token * forward.out.token);
    }
    template <bool kSilu>
    __device__ __forceinline__ void process_runs(int token, int last, bool exists, HiddenBits* hidden) {
        if constexpr (!kConfig.sequences || kConfig.indices) {
            const MixedSteps mixed = kConfig.indices ? find_mixed(token, last, hidden) : 0;
            if (exists && token < last) process<kSilu>(token, last, runs.at(token), mixed, hidden);
            return;
        }
        bool loaded = true;  // the first rows are in flight
#pragma unroll 1
        while (token < last) {
            const CausalRun run = runs.at(token);
            const int end = min(run.end, last);
            if (exists && run.exists()) {
                if (!loaded) load_first(token, min(end + kBefore, run.end));
                process<kSilu>(token, end, run);
            } else if (exists) {
                fill(token, end);
            }
            token = end;
            loaded = false;
        }
    }
    __device__ __forceinline__ void store_sums(int warp) const {
#pragma unroll
        for (int e = 0; e < kVector; ++e) {
#pragma unroll
            for (int k = 0; k < kTaps; ++k) shared.sums[warp][k][lane * kVector + e] = dweight[k][e];
            shared.sums[warp][kTaps][lane * kVector + e] = dbias[e];
        }
    }
};

template <CausalConvConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.column_blocks_backward())
    causal_conv_backward_columns(const __grid_constant__ CausalBackwardArgs args) {
    using Columns = CausalColumnsBackward<kConfig>;
    constexpr int kWarps = kConfig.threads() / 32, kChannels = kConfig.channels_backward(), kTaps = kConfig.taps;
    __shared__ CausalColumnsBackwardShared<kConfig> shared;
    __shared__ HiddenBits hidden[kWarps][kConfig.indices ? Columns::kMostSteps * Columns::kRows : 1];
    const CausalArgs& forward = args.forward;
    const unsigned groups = (static_cast<unsigned>(forward.channels) + kChannels - 1) / kChannels;
    const unsigned block = blockIdx.x, split = block / groups % args.splits;
    const int batch = static_cast<int>(block / groups / args.splits),
              first_channel = static_cast<int>(block % groups) * kChannels;
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
    const int channel = first_channel + lane * Columns::kVector;
    const i64 token = (static_cast<i64>(split) * kWarps + warp) * forward.segment;
    const int last = static_cast<int>(min(token + forward.segment, i64{forward.tokens}));
    const bool exists = channel < forward.channels;

    Columns columns{args, shared, batch, channel, lane};
    const int from = static_cast<int>(min(token, i64{last}));
    if (from < last && exists) columns.load_first(from, min(last + Columns::kBefore, forward.tokens));
    for (int i = thread; i < kChannels * (kTaps + 1); i += kConfig.threads()) {
        const int c = i / (kTaps + 1), k = i % (kTaps + 1), global = first_channel + c;
        if (global >= forward.channels) continue;
        if (k < kTaps)
            shared.weight[k][c] = load_tap(forward, kTaps, global, k);
        else
            shared.bias[c] = forward.bias.data == nullptr ? 0.f : load_float(forward.bias, global * forward.bias_channel);
    }
    __syncthreads();
    if (exists) columns.load_weights();
    if (forward.silu)
        columns.template process_runs<true>(from, last, exists, hidden[warp]);
    else
        columns.template process_runs<false>(from, last, exists, hidden[warp]);
    if (exists) columns.store_sums(warp);
    __syncthreads();
    const i64 row = static_cast<i64>(batch) * args.splits + split;
    for (int i = thread; i < kChannels * (kTaps + 1); i += kConfig.threads()) {
        const int c = i / (kTaps + 1), k = i % (kTaps + 1), global = first_channel + c;
        if (global >= forward.channels) continue;
        float sum = 0.f;
#pragma unroll
        for (int each = 0; each < kWarps; ++each) sum += shared.sums[each][k][c];
        const i64 at = row * forward.channels + global;
        const int tap = k - (kTaps - forward.taps);
        if (k == kTaps)
            args.dbias[at] = sum;
        else if (tap >= 0)
            args.dweight[at * forward.taps + tap] = sum;
    }
}

}  // namespace gdn_cuda::conv
