// conv/causal_conv_backward_rows: gradients of a causal convolution of few taps, tokens contiguous in memory. With z before
// the activation,
//
//     dz[t] = grad[t] act'(z[t])
//     dx[j] = sum over k of weight[k] dz[j + W - 1 - k]
//     dweight[k] = sum over t of dz[t] x[t - (W - 1) + k]
//
// A warp iterates over a segment of a row from its end to its beginning, one 16-byte vector per lane and step, with the
// inputs and gradients of the next steps in flight. The inputs before a lane's tokens come from the previous lane, and the
// dz after them from the next lane; lane 31 gets those from lane 0 of the step before. Weight sums stay in registers until
// the end of the segment: no atomics, and the same bits in every run. In a step with tokens of several sequences a lane has
// masks; where packed sequences have states, such a step is computed once per sequence. The inputs before a row of one
// sequence, its initial state, are those of the last lane in the step before the first. With seq_idx the block's warps, which
// have the same tokens of adjacent channels, find the mixed steps first.
//
// Bound: memory, 6 bytes an element in bf16. At that rate an SM has 41 instructions for an element, of which this takes 37.
#pragma once

#include <gdn_cuda/kernels/conv/causal_conv/backward_plan.cuh>
#include <gdn_cuda/kernels/conv/causal_conv/seq_idx.cuh>

namespace gdn_cuda::conv {

template <CausalConvConfig kConfig>
struct CausalRowsBackward {
    using T = Storage<kConfig.io>;
    static constexpr int kTaps = kConfig.taps, kBefore = kTaps - 1, kVector = kConfig.vector();
    static constexpr int kAhead = kConfig.steps_ahead(), kStep = kConfig.step_tokens();
    using Items = Vector<T, kVector, true>;
    using Window = float[kBefore + kVector];
    using StepMasks = CausalStepMasks<kConfig.most_steps(), kStep, kBefore, true>;  // with seq_idx

    const CausalBackwardArgs& args;
    int batch, channel, lane;
    const CausalArgs& forward = args.forward;
    CausalRuns<kConfig.sequences || kConfig.from_state, kConfig.sequences && !kConfig.indices> runs{{forward.sequences, batch},
                                                                                                    lane};
    const T* x = static_cast<const T*>(forward.x.data) + batch * forward.x.batch + channel * forward.x.channel;
    const T* grad = static_cast<const T*>(args.grad.data) + batch * args.grad.batch + channel * args.grad.channel;
    T* out = static_cast<T*>(forward.out.data) + batch * forward.out.batch + channel * forward.out.channel;
    const StepMasks* masks = nullptr;
    CausalOffsets near;  // the offsets looked up last
    float weight[kTaps], bias;
    float dweight[kTaps], dbias;
    float next_dz[kBefore];  // lane 0: dz of the tokens after the step
    Items in[kAhead], grads[kAhead];
    Items before;  // with from_state: the last inputs before the row, in the last lane

    // Loads step `step` of the segment that begins at `begin`; in step -1 only the last lane loads, the inputs before the
    // segment.
    __device__ __forceinline__ void load(int slot, int begin, int step) {
        in[slot].clear();
        grads[slot].clear();
        const int first = begin + step * kStep + lane * kVector;
        if (kConfig.from_state && step == -1 && begin == 0) {
            in[slot] = before;
            return;
        }
        if (step < -1 || first < 0 || first >= forward.tokens || (step < 0 && lane < 31)) return;
        in[slot].load_streaming(x + first);
        if (step >= 0) grads[slot].load_streaming(grad + first);
    }
    __device__ __forceinline__ void load_state() {
        before.clear();
        if (lane < 31) return;
        const CausalSequences::State state = runs.state({.sequence = batch, .end = forward.tokens, .place = Place::run});
#pragma unroll
        for (int i = 0; i < kBefore; ++i) before.set(kVector - kBefore + i, state.at(channel, kBefore - i));
    }
    __device__ __forceinline__ bool exists(int tap) const { return kConfig.exists(tap, forward.taps); }
    __device__ __forceinline__ void load_weights() {
#pragma unroll
        for (int k = 0; k < kTaps; ++k) {
            weight[k] = load_tap(forward, kTaps, channel, k);
            dweight[k] = 0.f;
        }
        bias = forward.bias.data == nullptr ? 0.f : load_float(forward.bias, channel * forward.bias_channel);
        dbias = 0.f;
    }
    // Loads next_dz for the tokens from `end` on, the segment's end; the segment's last token belongs to `run`.
    __device__ __forceinline__ void load_next_dz(int end, const CausalRun& run) {
#pragma unroll
        for (int i = 0; i < kBefore; ++i) next_dz[i] = 0.f;
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
        for (int i = 0; i < kBefore; ++i) next_dz[i] = __shfl_sync(kAllLanes, dz, i);
    }

    // ---- A step, whose first token of this lane is `first`

    __device__ __forceinline__ void compute_dz(float (&d)[kVector + kBefore], const Window& seen) const {
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
    __device__ __forceinline__ void add_weight_sums(float d, const float* seen) {
        dbias += d;
#pragma unroll
        for (int k = 0; k < kTaps; ++k) dweight[k] = fmaf(d, seen[k], dweight[k]);
    }
    // Gets dz of the kBefore tokens after the lane's, from the next lane.
    __device__ __forceinline__ void pass_on(float (&d)[kVector + kBefore]) const {
#pragma unroll
        for (int i = 0; i < kBefore; ++i)
            d[kVector + i] = __shfl_sync(kAllLanes, lane == 0 ? next_dz[i] : d[i], (lane + 1) % 32);
    }
    __device__ __forceinline__ float compute_dx(const float* d) const {
        float dx = 0.f;
#pragma unroll
        for (int m = 0; m < kTaps; ++m)
            if (exists(kBefore - m)) dx = fmaf(weight[kBefore - m], d[m], dx);
        return dx;
    }
    // A step whose tokens are of one sequence or past the row's end.
    __device__ __forceinline__ Items whole_step(const Window& seen, const Items& g, bool exists) {
        float d[kVector + kBefore];
        to_floats(d, g);
        if (exists) {  // infinite inputs would give NaN
            compute_dz(d, seen);
#pragma unroll
            for (int i = 0; i < kVector; ++i) add_weight_sums(d[i], seen + i);
        }
        pass_on(d);
        Items dx;
#pragma unroll
        for (int i = 0; i < kVector; ++i) dx.set(i, compute_dx(d + i));
#pragma unroll
        for (int i = 0; i < kBefore; ++i) next_dz[i] = d[i];
        return dx;
    }
    // Masks of a lane's tokens. Bit i is token `first` - kBefore + i.
    struct Hidden {
        unsigned by[kTaps] = {};  // by[m]: the token does not see the token m before it; by[0]: it belongs to no sequence
        int first;

        __device__ __forceinline__ static unsigned bits_up_to(int i) { return i >= 32 ? ~0u : (1u << max(i, 0)) - 1; }
        // Marks that a sequence ends before `end`.
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
    // The masks of a step's tokens. `run` contains the last token on entry, and the first on return.
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
    // A step with tokens of several sequences or none, without states; seq_idx also with states.
    __device__ __forceinline__ Items masked_step(const Window& seen, const Items& g, const auto& hidden, bool exists,
                                                 int first) {
        float d[kVector + kBefore];
        to_floats(d, g);
        if (exists) {
#pragma unroll
            for (int i = 0; i < kVector; ++i) {
                float token_seen[kTaps], z = bias;
#pragma unroll
                for (int k = 0; k < kTaps; ++k) {
                    token_seen[k] = hidden.seen(seen[i + k], i, kBefore - k);
                    if (this->exists(k)) z = fmaf(weight[k], token_seen[k], z);
                }
                if (forward.silu) d[i] *= silu_slope(z);
                d[i] = hidden.seen(d[i], i, 0);
                add_weight_sums(d[i], token_seen);
            }
        }
        pass_on(d);
        Items dx;
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
            float next_seen[kTaps];
#pragma unroll
            for (int m = 0; m < kTaps; ++m) next_seen[m] = hidden.seen(d[i + m], i + m, m);
            dx.set(i, compute_dx(next_seen) + last_token_state_gradient(first + i));
        }
#pragma unroll
        for (int i = 0; i < kBefore; ++i) next_dz[i] = d[i];
        return dx;
    }
    // A mixed step of packed sequences with states or their gradients: one sequence after the other.
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
                float history[kBefore], d[kVector + kBefore];
                Window run_seen;
#pragma unroll
                for (int i = 0; i < kBefore; ++i) history[i] = state.at(channel, kBefore - i);
#pragma unroll
                for (int i = 0; i < kBefore + kVector; ++i) run_seen[i] = seen[i];
                mask_window(run_seen, run, first, history);
                to_floats(d, g);
                compute_dz(d, run_seen);
#pragma unroll
                for (int i = 0; i < kVector; ++i) {
                    if (run.contains(first + i))
                        add_weight_sums(d[i], run_seen + i);
                    else
                        d[i] = 0.f;
                }
                pass_on(d);
#pragma unroll
                for (int i = 0; i < kBefore; ++i)
                    if (first + kVector + i >= run.end) d[kVector + i] = 0.f;
#pragma unroll
                for (int i = 0; i < kVector; ++i)
                    if (run.contains(first + i)) dx.set(i, compute_dx(d + i) + final_state_gradient(run, first + i));
#pragma unroll
                for (int i = 0; i < kBefore; ++i)
                    if (run.contains(first + i)) dz[i] = d[i];
            }
            if (run.first <= begin) break;
            run = runs.at(run.first - 1, near);
        }
#pragma unroll
        for (int i = 0; i < kBefore; ++i) next_dz[i] = dz[i];
        return dx;
    }
    // The gradient of the final state with respect to a token.
    __device__ __forceinline__ float final_state_gradient(const CausalRun& run, int token) const {
        const CausalStates& states = args.grad_states;
        const int position = token - (run.end - states.positions);
        if (states.values.data == nullptr || position < 0) return 0.f;
        return load_float(states.values, run.sequence * states.slot + channel * states.channel + position * states.position);
    }

    // With seq_idx: the final state belongs to the last token's sequence.
    __device__ __forceinline__ float last_token_state_gradient(int token) const {
        const bool has_one = kConfig.indices && args.grad_states.values.data != nullptr;
        if (!has_one || token >= forward.tokens || token < forward.tokens - kBefore) return 0.f;
        const i64 index = runs.sequences.index_of(token);
        if (index < 0 || index != runs.sequences.index_of(forward.tokens - 1)) return 0.f;
        return final_state_gradient({.sequence = batch, .end = forward.tokens}, token);
    }

    // `earlier`: the inputs of the previous tokens of the row.
    __device__ __forceinline__ void step(const Items& own, const Items& earlier, const Items& g, CausalRun& run, int begin,
                                         int index) {
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
            if (masks->uniform[index])
                dx = whole_step(seen, g, first < end);
            else
                dx = masked_step(seen, g, masks->template for_lane<kVector>(index, lane), first < end, first);
        } else if constexpr (kConfig.sequences) {
            if (run.first >= end) run = runs.at(end - 1, near);
            const bool has_end_states = args.grad_states.values.data != nullptr,
                       at_end = end == forward.tokens && !has_end_states;
            if (runs.template is_uniform<kBefore>(run, begin, at_end ? end : end + kBefore))
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
    // A warp's segment of a row.
    struct Segment {
        int index, begin, end, steps;

        __device__ __forceinline__ Segment(int index, const CausalBackwardArgs& args)
            : index(index),
              begin(index * args.tiles * kStep),
              end(static_cast<int>(min(begin + i64{args.tiles} * kStep, i64{args.forward.tokens}))),
              steps(static_cast<int>(ceil_div(end - begin, kStep))) {}
    };
    __device__ __forceinline__ void load_first(const Segment& segment) {
        if (kConfig.from_state && segment.begin == 0) load_state();
#pragma unroll
        for (int i = 0; i < kAhead; ++i) load(i, segment.begin, segment.steps - 1 - i);
    }
    __device__ __forceinline__ void run(const Segment& segment) {
        const auto [index, begin, end, steps] = segment;
        load_weights();
        CausalRun current = runs.at(end - 1, near);
        load_next_dz(end, current);
        // If a step's code is long, it is not unrolled, and the prefetch registers rotate by copies.
        constexpr int kUnrolled = kConfig.sequences ? 1 : kAhead;
#pragma unroll 1
        for (int last = steps - 1; last >= 0; last -= kUnrolled) {
#pragma unroll
            for (int i = 0; i < kUnrolled; ++i) {
                if (last < i) break;
                step(in[i], in[(i + 1) % kAhead], grads[i], current, begin + (last - i) * kStep, last - i);
                if constexpr (kConfig.sequences) {
#pragma unroll
                    for (int next = 1; next < kAhead; ++next) in[next - 1] = in[next], grads[next - 1] = grads[next];
                    load(kAhead - 1, begin, last - kAhead);
                } else {
                    load(i, begin, last - i - kAhead);
                }
            }
        }
        store_sums(index);
    }
    __device__ __forceinline__ void store_sums(int segment) const {
        const i64 at = (static_cast<i64>(batch) * args.splits + segment) * forward.channels + channel;
#pragma unroll
        for (int k = 0; k < kTaps; ++k) {
            const float sum = group_sum<32>(dweight[k]);
            const int tap = k - (kTaps - forward.taps);
            if (lane == k && tap >= 0) args.dweight[at * forward.taps + tap] = sum;
        }
        const float sum = group_sum<32>(dbias);
        if (lane == 0) args.dbias[at] = sum;
    }
};

template <CausalConvConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.row_blocks_backward())
    causal_conv_backward_rows(const __grid_constant__ CausalBackwardArgs args) {
    using Rows = CausalRowsBackward<kConfig>;
    constexpr int kWarps = kConfig.threads() / 32;
    const CausalRowPlace place(args.forward.channels, args.splits, kWarps);
    const bool exists = place.channel < args.forward.channels;
    if (!kConfig.indices && !exists) return;
    const int thread = static_cast<int>(threadIdx.x);
    const typename Rows::Segment segment(place.tile, args);
    Rows rows{args, place.batch, place.channel, thread % 32};
    if (exists) rows.load_first(segment);
    if constexpr (kConfig.indices) {
        __shared__ typename Rows::StepMasks masks;
        // The last step of a row adds gradients of the final state to some tokens.
        masks.look_up(rows.runs.sequences, segment.begin, segment.steps, [&](int begin) {
            return args.grad_states.values.data != nullptr && begin + Rows::kStep >= args.forward.tokens;
        });
        rows.masks = &masks;
        __syncthreads();
        if (!exists) return;
    }
    rows.run(segment);
}

}  // namespace gdn_cuda::conv
