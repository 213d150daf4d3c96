// conv/causal_conv_backward_rows: gradients of a causal convolution of few taps where tokens are neighbours in memory. With z
// before the activation,
//
//     dz[t] = grad[t] act'(z[t])
//     dx[j] = sum over k of weight[k] dz[j + W - 1 - k]
//     dweight[k] = sum over t of dz[t] x[t - (W - 1) + k]
//
// A warp walks from the end of a piece of a row to its beginning, by a vector of 16 bytes of each lane a step, with the next
// steps' inputs and gradients in flight. What a lane's tokens see before them comes from the lane before, and the dz behind
// them from the lane behind: lane 31's from lane 0's of the step before. Sums for weights stay in registers until the end of
// the piece: no atomics, and the same bits in every run. In a step with tokens of several sequences a lane has bits for what
// its tokens do not see; where packed sequences have states, such a step is computed once for each sequence. With seq_idx the
// block's warps, which have the same tokens of neighbouring channels, first look up which steps are of one sequence.
//
// Bound: memory, 6 bytes an element for bf16. At that rate an SM has 41 instructions for an element, of which this takes 37.
#pragma once

#include <gdn_cuda/kernels/conv/causal_conv/seq_idx.cuh>
#include <gdn_cuda/kernels/conv/causal_conv_backward/plan.cuh>

namespace gdn_cuda::conv {

template <CausalConvConfig kConfig>
struct CausalRowsBackward {
    using T = Storage<kConfig.io>;
    static constexpr int kTaps = kConfig.taps, kBefore = kTaps - 1, kVector = kConfig.vector();
    static constexpr int kAhead = kConfig.steps_ahead(), kStep = kConfig.step_tokens();
    using Items = Vector<T, kVector, true>;
    using Window = float[kBefore + kVector];
    using Found = CausalStepsFound<kConfig.most_steps(), kStep, kBefore, true>;  // with seq_idx

    const CausalBackwardArgs& args;
    int batch, channel, lane;
    const CausalArgs& forward = args.forward;
    CausalRuns<kConfig.sequences, kConfig.sequences && !kConfig.indices> runs{{forward.sequences, batch}, lane};
    const T* x = static_cast<const T*>(forward.x.data) + batch * forward.x.batch + channel * forward.x.channel;
    const T* grad = static_cast<const T*>(args.grad.data) + batch * args.grad.batch + channel * args.grad.channel;
    T* out = static_cast<T*>(forward.out.data) + batch * forward.out.batch + channel * forward.out.channel;
    const Found* found = nullptr;
    CausalOffsets near;  // those that were looked up last
    float weight[kTaps], bias;
    float of_weight[kTaps], of_bias;
    float behind[kBefore];  // of lane 0: dz of the tokens behind the step
    Items in[kAhead], grads[kAhead];

    // A piece begins at `begin`; its steps are counted from there, and the last lane loads what lies before it.
    __device__ __forceinline__ void load(int slot, int begin, int step) {
        in[slot].clear();
        grads[slot].clear();
        const int first = begin + step * kStep + lane * kVector;
        if (step < -1 || first < 0 || first >= forward.tokens || (step < 0 && lane < 31)) return;
        in[slot].load_streaming(x + first);
        if (step >= 0) grads[slot].load_streaming(grad + first);
    }
    __device__ __forceinline__ bool exists(int tap) const { return kConfig.exists(tap, forward.taps); }
    __device__ __forceinline__ void load_weights() {
#pragma unroll
        for (int k = 0; k < kTaps; ++k) {
            weight[k] = load_tap(forward, kTaps, channel, k);
            of_weight[k] = 0.f;
        }
        bias = forward.bias.data == nullptr ? 0.f : load_number(forward.bias, channel * forward.bias_channel);
        of_bias = 0.f;
    }
    // dz of the tokens from `end` on, the end of the piece, whose last token is of `run`.
    __device__ __forceinline__ void load_behind(int end, const CausalRun& run) {
#pragma unroll
        for (int i = 0; i < kBefore; ++i) behind[i] = 0.f;
        if (!run.exists() || run.end <= end) return;
        float dz = 0.f;
        const int token = end + lane;
        if (lane < kBefore && token < run.end) {
            const CausalSequences::State state = runs.state(run);
            const i64 index = kConfig.indices ? runs.sequences.index_of(token) : 0;
            float z = bias;
#pragma unroll
            for (int k = 0; k < kTaps; ++k) {
                const int at = token - kBefore + k;
                if (!exists(k) || (kConfig.indices && runs.sequences.index_of(at) != index)) continue;
                z = fmaf(weight[k], at < run.first ? state.at(channel, run.first - at) : to_float(x[at]), z);
            }
            dz = index < 0 ? 0.f : to_float(grad[token]);
            if (forward.silu) dz *= silu_slope(z);
        }
#pragma unroll
        for (int i = 0; i < kBefore; ++i) behind[i] = __shfl_sync(kAllLanes, dz, i);
    }

    // ---- A step, whose first token of this lane is `first`

    __device__ __forceinline__ void to_sums(float (&d)[kVector + kBefore], const Window& seen) const {
        if (!forward.silu) return;
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
            float z = bias;
#pragma unroll
            for (int k = 0; k < kTaps; ++k)
                if (exists(k)) z = fmaf(weight[k], seen[i + k], z);
            d[i] *= silu_slope(z);
        }
    }
    __device__ __forceinline__ void to_weights(float d, const float* seen) {
        of_bias += d;
#pragma unroll
        for (int k = 0; k < kTaps; ++k) of_weight[k] = fmaf(d, seen[k], of_weight[k]);
    }
    // The gradients behind the lane's, from the lane behind.
    __device__ __forceinline__ void pass_on(float (&d)[kVector + kBefore]) const {
#pragma unroll
        for (int i = 0; i < kBefore; ++i)
            d[kVector + i] = __shfl_sync(kAllLanes, lane == 0 ? behind[i] : d[i], (lane + 1) % 32);
    }
    __device__ __forceinline__ float to_input(const float* d) const {
        float dx = 0.f;
#pragma unroll
        for (int m = 0; m < kTaps; ++m)
            if (exists(kBefore - m)) dx = fmaf(weight[kBefore - m], d[m], dx);
        return dx;
    }
    // Tokens of one sequence, or behind the row: those of whole lanes.
    __device__ __forceinline__ Items whole_step(const Window& seen, const Items& g, bool exists) {
        float d[kVector + kBefore];
        to_floats(d, g);
        if (exists) {  // what is infinite would give NaN
            to_sums(d, seen);
#pragma unroll
            for (int i = 0; i < kVector; ++i) to_weights(d[i], seen + i);
        }
        pass_on(d);
        Items dx;
#pragma unroll
        for (int i = 0; i < kVector; ++i) dx.set(i, to_input(d + i));
#pragma unroll
        for (int i = 0; i < kBefore; ++i) behind[i] = d[i];
        return dx;
    }
    // What a lane's tokens do not see. Bit i is token `first` - kBefore + i.
    struct Hidden {
        unsigned by[kTaps] = {};  // by[m]: tokens that do not see the one m before; by[0]: of no sequence
        int first;

        __device__ __forceinline__ static unsigned bits_up_to(int i) { return i >= 32 ? ~0u : (1u << max(i, 0)) - 1; }
        // A sequence that ends before `end`.
        __device__ __forceinline__ void end_at(int end) {
            const int i = end - (first - kBefore);
            if (i >= 0 && i < 32) by[1] |= 1u << i;
        }
        __device__ __forceinline__ void add_none(int begin, int end) {
            const unsigned tokens = bits_up_to(end - (first - kBefore)) & ~bits_up_to(begin - (first - kBefore));
            by[0] |= tokens;
            by[1] |= tokens;
        }
        __device__ __forceinline__ void complete() {
#pragma unroll
            for (int m = 2; m < kTaps; ++m) by[m] = by[m - 1] | by[1] << (m - 1);
        }
        __device__ __forceinline__ float seen(float x, int token, int back) const {
            return by[back] >> (kBefore + token) & 1 ? 0.f : x;
        }
    };
    // The sequences of a step's tokens. `run` has the last token and becomes that of the first.
    __device__ __forceinline__ Hidden hidden_of(CausalRun& run, int begin) {
        Hidden hidden{.first = begin + lane * kVector};
#pragma unroll 1
        while (true) {
            hidden.end_at(run.end);
            if (!run.exists()) hidden.add_none(run.first, run.end);
            if (run.first <= begin) break;
            run = runs.at(run.first - 1, near);
        }
        hidden.end_at(run.first);
        hidden.complete();
        return hidden;
    }
    // Tokens of several sequences or of none. Without states, but for seq_idx.
    __device__ __forceinline__ Items masked_step(const Window& seen, const Items& g, const auto& hidden, bool exists,
                                                 int first) {
        float d[kVector + kBefore];
        to_floats(d, g);
        if (exists) {
#pragma unroll
            for (int i = 0; i < kVector; ++i) {
                float of_token[kTaps], z = bias;
#pragma unroll
                for (int k = 0; k < kTaps; ++k) {
                    of_token[k] = hidden.seen(seen[i + k], i, kBefore - k);
                    if (this->exists(k)) z = fmaf(weight[k], of_token[k], z);
                }
                if (forward.silu) d[i] *= silu_slope(z);
                d[i] = hidden.seen(d[i], i, 0);
                to_weights(d[i], of_token);
            }
        }
        pass_on(d);
        Items dx;
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
            float of_behind[kTaps];
#pragma unroll
            for (int m = 0; m < kTaps; ++m) of_behind[m] = hidden.seen(d[i + m], i + m, m);
            dx.set(i, to_input(of_behind) + of_last_state(first + i));
        }
#pragma unroll
        for (int i = 0; i < kBefore; ++i) behind[i] = d[i];
        return dx;
    }
    // The same for packed sequences with states or their gradients, one after the other.
    __device__ __forceinline__ Items step_by_runs(const Window& seen, const Items& g, CausalRun& run, int begin) {
        const int first = begin + lane * kVector;
        float dz[kBefore];
        Items dx;
        dx.clear();
#pragma unroll
        for (int i = 0; i < kBefore; ++i) dz[i] = 0.f;
#pragma unroll 1
        while (true) {
            if (run.exists()) {
                const CausalSequences::State state = runs.state(run);
                float old[kBefore], d[kVector + kBefore];
                Window of_run;
#pragma unroll
                for (int i = 0; i < kBefore; ++i) old[i] = state.at(channel, kBefore - i);
#pragma unroll
                for (int i = 0; i < kBefore + kVector; ++i) of_run[i] = seen[i];
                mask_window(of_run, run, first, old);
                to_floats(d, g);
                to_sums(d, of_run);
#pragma unroll
                for (int i = 0; i < kVector; ++i) {
                    if (run.contains(first + i))
                        to_weights(d[i], of_run + i);
                    else
                        d[i] = 0.f;
                }
                pass_on(d);
#pragma unroll
                for (int i = 0; i < kBefore; ++i)
                    if (first + kVector + i >= run.end) d[kVector + i] = 0.f;
#pragma unroll
                for (int i = 0; i < kVector; ++i)
                    if (run.contains(first + i)) dx.set(i, to_input(d + i) + of_state(run, first + i));
#pragma unroll
                for (int i = 0; i < kBefore; ++i)
                    if (run.contains(first + i)) dz[i] = d[i];
            }
            if (run.first <= begin) break;
            run = runs.at(run.first - 1, near);
        }
#pragma unroll
        for (int i = 0; i < kBefore; ++i) behind[i] = dz[i];
        return dx;
    }
    // The gradient of a token by the state behind its sequence.
    __device__ __forceinline__ float of_state(const CausalRun& run, int token) const {
        const CausalStates& states = args.grad_behind;
        const int position = token - (run.end - states.positions);
        if (states.values.data == nullptr || position < 0) return 0.f;
        return load_number(states.values, run.sequence * states.slot + channel * states.channel + position * states.position);
    }

    // With seq_idx: that state is of the sequence of the last token.
    __device__ __forceinline__ float of_last_state(int token) const {
        const bool has_one = kConfig.indices && args.grad_behind.values.data != nullptr;
        if (!has_one || token >= forward.tokens || token < forward.tokens - kBefore) return 0.f;
        const i64 index = runs.sequences.index_of(token);
        if (index < 0 || index != runs.sequences.index_of(forward.tokens - 1)) return 0.f;
        return of_state({.sequence = batch, .end = forward.tokens}, token);
    }

    // `earlier`: the inputs of the step before in the row.
    __device__ __forceinline__ void step(const Items& own, const Items& earlier, const Items& g, CausalRun& run, int begin,
                                         int number) {
        const int end = min(begin + kStep, forward.tokens), first = begin + lane * kVector;
        Window seen;
        load_window<kBefore>(seen, own, earlier, lane);
        Items dx;
        if constexpr (kConfig.indices) {
            if (begin == 0 && lane == 0) {
                const CausalSequences::State state = runs.state(run);
#pragma unroll
                for (int i = 0; i < kBefore; ++i) seen[i] = state.at(channel, kBefore - i);
            }
            if (found->together[number])
                dx = whole_step(seen, g, first < end);
            else
                dx = masked_step(seen, g, found->template of_lane<kVector>(number, lane), first < end, first);
        } else if constexpr (kConfig.sequences) {
            if (run.first >= end) run = runs.at(end - 1, near);
            const bool has_end_states = args.grad_behind.values.data != nullptr,
                       at_end = end == forward.tokens && !has_end_states;
            if (runs.template together<kBefore>(run, begin, at_end ? end : end + kBefore))
                dx = whole_step(seen, g, first < end);
            else if (!has_end_states && !runs.sequences.has_states())
                dx = masked_step(seen, g, hidden_of(run, begin), first < end, first);
            else
                dx = step_by_runs(seen, g, run, begin);
        } else {
            dx = whole_step(seen, g, first < end);
        }
        if (first < end) dx.store_global(out + first);
    }
    // A piece of a row.
    struct Piece {
        int number, begin, end, steps;

        __device__ __forceinline__ Piece(int of_row, const CausalBackwardArgs& args)
            : number(of_row),
              begin(of_row * args.tiles * kStep),
              end(static_cast<int>(min(begin + i64{args.tiles} * kStep, i64{args.forward.tokens}))),
              steps(static_cast<int>(ceil_div(end - begin, kStep))) {}
    };
    __device__ __forceinline__ void load_first(const Piece& piece) {
#pragma unroll
        for (int i = 0; i < kAhead; ++i) load(i, piece.begin, piece.steps - 1 - i);
    }
    __device__ __forceinline__ void run(const Piece& piece) {
        const auto [number, begin, end, steps] = piece;
        load_weights();
        CausalRun of_token = runs.at(end - 1, near);
        load_behind(end, of_token);
        // Slots of registers rotate by copies where a step's code is long.
        constexpr int kUnrolled = kConfig.sequences ? 1 : kAhead;
#pragma unroll 1
        for (int last = steps - 1; last >= 0; last -= kUnrolled) {
#pragma unroll
            for (int i = 0; i < kUnrolled; ++i) {
                if (last < i) break;
                step(in[i], in[(i + 1) % kAhead], grads[i], of_token, begin + (last - i) * kStep, last - i);
                if constexpr (kConfig.sequences) {
#pragma unroll
                    for (int next = 1; next < kAhead; ++next) in[next - 1] = in[next], grads[next - 1] = grads[next];
                    load(kAhead - 1, begin, last - kAhead);
                } else {
                    load(i, begin, last - i - kAhead);
                }
            }
        }
        store_sums(number);
    }
    __device__ __forceinline__ void store_sums(int piece) const {
        const i64 at = (static_cast<i64>(batch) * args.cuts + piece) * forward.channels + channel;
#pragma unroll
        for (int k = 0; k < kTaps; ++k) {
            const float sum = group_sum<32>(of_weight[k]);
            const int tap = k - (kTaps - forward.taps);
            if (lane == k && tap >= 0) args.of_weight[at * forward.taps + tap] = sum;
        }
        const float sum = group_sum<32>(of_bias);
        if (lane == 0) args.of_bias[at] = sum;
    }
};

template <CausalConvConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.row_blocks_backward())
    causal_conv_backward_rows(const __grid_constant__ CausalBackwardArgs args) {
    using Rows = CausalRowsBackward<kConfig>;
    constexpr int kWarps = kConfig.threads() / 32;
    const CausalRowPlace place(args.forward.channels, args.cuts, kWarps);
    const bool exists = place.channel < args.forward.channels;
    if (!kConfig.indices && !exists) return;
    const int thread = static_cast<int>(threadIdx.x);
    const typename Rows::Piece piece(place.tile, args);
    Rows rows{args, place.batch, place.channel, thread % 32};
    if (exists) rows.load_first(piece);
    if constexpr (kConfig.indices) {
        __shared__ typename Rows::Found found;
        // The last step of a row adds the gradient of a state behind it to some tokens.
        found.look_up(rows.runs.sequences, piece.begin, piece.steps, [&](int begin) {
            return args.grad_behind.values.data != nullptr && begin + Rows::kStep >= args.forward.tokens;
        });
        rows.found = &found;
        __syncthreads();
        if (!exists) return;
    }
    rows.run(piece);
}

}  // namespace gdn_cuda::conv
