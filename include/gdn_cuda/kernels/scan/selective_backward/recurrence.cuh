// scan/selective_backward, the recurrence over a chunk. The forward pass keeps each state before every eight tokens (a
// sub-tile) in shared memory, as a checkpoint. Then, from the last sub-tile to the first, a lane recomputes the sub-tile's
// states and decays into registers and iterates backwards over its tokens, whose gradients need dx and the states before and
// after the token.
#pragma once

#include <gdn_cuda/kernels/common/vector.cuh>
#include <gdn_cuda/kernels/scan/selective_backward/states.cuh>
#include <gdn_cuda/kernels/scan/selective_backward/sums.cuh>

namespace gdn_cuda::scan {

template <SelectiveBackwardConfig kConfig>
struct BackwardRecurrence : BackwardBlock<kConfig> {
    using Block = BackwardBlock<kConfig>;
    using Block::add_values, Block::load_values, Block::store_values;
    using Block::args, Block::in, Block::place, Block::shared, Block::left, Block::lane_position, Block::varies;
    using Block::four, Block::in_row;
    using Block::kIsRglru, Block::kTransition, Block::kColumns, Block::kHalf, Block::kLanes, Block::kStates, Block::kTokens;
    using typename Block::Gradient, typename Block::Lanes, typename Block::Number, typename Block::LaneValues,
        typename Block::Poles, typename Block::LanePosition, typename Block::Shared;
    using Own = typename BackwardStates<kConfig>::Own;

    BackwardSums<kConfig> sums;

    // Rows of B or C in shared memory: one per token, or if constant one for all tokens (pitch 0). An index, since the compiler
    // uses generic loads for a pointer that may point to either array.
    struct TokenRows {
        int first, pitch;
    };
    __device__ __forceinline__ const float* shared_floats() const { return reinterpret_cast<const float*>(&shared); }
    __device__ __forceinline__ TokenRows rows_of(bool is_B, const LanePosition& at) const {
        const Coefficients& x = is_B ? in.B : in.C;
        const float* tile = &(is_B ? shared.B : shared.C)[0][0];
        const int from = static_cast<int>(tile - shared_floats()) + at.offset;
        if (varies(x)) return {from, kColumns};
        return {from + at.channel * kColumns, 0};
    }
    __device__ __forceinline__ void load_row(LaneValues& to, const TokenRows& rows, int token) const {
        load_values(to, shared_floats() + rows.first + token * (kConfig.only_varying ? kColumns : rows.pitch));
    }

    // Four tokens of the channel's tiles.
    struct Elements {
        float step[kHalf], input[kHalf], cotangent[kHalf], size[kHalf];

        __device__ __forceinline__ ChannelStep at(int t) const { return {step[t], input[t], size[t]}; }
    };
    __device__ __forceinline__ static void load_four(float (&to)[kHalf], const float (*tile)[kStateChunk], int channel,
                                                     int token) {
        const float4 x = four(tile, channel, token);
        to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
    }
    __device__ __forceinline__ void load_elements(Elements& x, int channel, int token, bool with_cotangents) const {
        load_four(x.step, shared.step, channel, token);
        load_four(x.input, shared.input, channel, token);
        if (with_cotangents) load_four(x.cotangent, shared.cotangent, channel, token);
        if constexpr (has_size(kTransition)) {
            load_four(x.size, shared.size, channel, token);
        } else {
#pragma unroll
            for (int i = 0; i < kHalf; ++i) x.size[i] = 0.f;
        }
    }

    // Equal decays near one round in the same direction, so over a long memory the carry would drift. For poles where it may,
    // the exact decay over the chunk is computed from the sum of its steps, and the carry is corrected before the chunk so that
    // the rounded decays give the exact result.
    __device__ __forceinline__ static bool may_drift(const Poles& pole, float total) {
        // Complex states need two more passes, and gradients of 16 bits are rounded by up to 4e-3.
        return pole.may_drift(total, kStateChunk, Block::kCoarse ? 3e-4f : 5e-5f);
    }
    __device__ __forceinline__ void anchor(Own& own, int tokens) const {
        const LanePosition at = lane_position();
        float total = 0.f;
#pragma unroll
        for (int token = 0; token < kStateChunk; token += 4 * kLanes) {
            const float4 x = four(shared.step, at.channel, token + 4 * at.lane);
            total += (x.x + x.y) + (x.z + x.w);
        }
        total = Lanes::sum(total);
        bool any = false;
#pragma unroll
        for (int s = 0; s < kStates; ++s) any |= may_drift(own.poles[s], total);
        if (!__any_sync(0xffffffffu, any)) return;
        if constexpr (kConfig.is_complex)
            anchor_phases(own, at, tokens, total);
        else
            anchor_sizes(own, at, tokens, total);
    }
    __device__ __forceinline__ void anchor_sizes(Own& own, const LanePosition& at, int tokens, float total) const {
        float relative[kStates] = {};  // the product of the rounded decays minus 1: its own rounding is much finer
#pragma unroll 1
        for (int token = 0; token < tokens; token += kHalf) {
            float steps[kHalf];
            load_four(steps, shared.step, at.channel, token);  // 0 after the last token
#pragma unroll
            for (const float step : steps)
#pragma unroll
                for (int s = 0; s < kStates; ++s) {
                    const float decay = own.poles[s].step({step, 0.f, 0.f}, 0.f).decay;
                    relative[s] = fmaf(relative[s], decay, decay - 1.f);
                }
        }
#pragma unroll
        for (int s = 0; s < kStates; ++s) {
            float exact;
            if (own.poles[s].long_memory(total, exact) && may_drift(own.poles[s], total))
                own.carry[s] = fmaf(own.carry[s], __fdividef(exact - relative[s], 1.f + relative[s]), own.carry[s]);
        }
    }
    // A product of complex decays is rounded no finer than the carry itself. So two extra passes over the chunk, run together,
    // give the correction: one from zero, to which the carry times its exact decay is added, and one from the carry with the
    // rounded decays that the backward pass will use.
    __device__ __forceinline__ void anchor_phases(Own& own, const LanePosition& at, int tokens, float total) const {
        LaneValues from_zero{}, rounded;
#pragma unroll
        for (int s = 0; s < kStates; ++s) rounded[s] = own.carry[s];
        const TokenRows rows = rows_of(false, at);
        ExactSum sum;
#pragma unroll 1
        for (int four = (tokens - 1) / kHalf * kHalf; four >= 0; four -= kHalf) {
            float steps[kHalf], cotangents[kHalf];  // 0 after the last token
            load_four(steps, shared.step, at.channel, four);
            load_four(cotangents, shared.cotangent, at.channel, four);
#pragma unroll
            for (int t = kHalf - 1; t >= 0; --t) {
                sum.add(steps[t]);
                LaneValues C;
                load_row(C, rows, four + t);
#pragma unroll
                for (int s = 0; s < kStates; ++s) {
                    const Number decay = own.poles[s].power(steps[t]);
                    from_zero[s] = Gradient::carried(plus_scaled(from_zero[s], conjugate(C[s]), cotangents[t]), decay);
                    rounded[s] = Gradient::carried(plus_scaled(rounded[s], conjugate(C[s]), cotangents[t]), decay);
                }
            }
        }
#pragma unroll
        for (int s = 0; s < kStates; ++s) {
            if (!may_drift(own.poles[s], total)) continue;
            const Number decay = conjugate(own.poles[s].decay_over(sum));
            const Number correction = plus_product(from_zero[s], decay, own.carry[s]) - rounded[s];
            own.carry[s] = own.carry[s] + correction * inverse(decay);
        }
    }
    // One step of each state; returns its decay too.
    __device__ __forceinline__ static void step(LaneValues& to, LaneValues& decay, const Own& own, const LaneValues& from,
                                                const ChannelStep& channel, const LaneValues& B) {
#pragma unroll
        for (int s = 0; s < kStates; ++s) {
            const Step<Number> step = own.poles[s].step(channel, B[s]);
            decay[s] = step.decay;
            to[s] = after<Poles::kRelative>(from[s], step);
        }
    }
    // Calls `call` with each token of a sub-tile, its step and its B.
    template <class F>
    __device__ __forceinline__ void each_token(int k, const LanePosition& at, const F& call) const {
        const TokenRows rows = rows_of(true, at);
#pragma unroll
        for (int half = 0; half < kTokens; half += kHalf) {
            Elements e;
            load_elements(e, at.channel, k * kTokens + half, false);
#pragma unroll
            for (int t = 0; t < kHalf; ++t) {
                LaneValues B;
                load_row(B, rows, k * kTokens + half + t);
                call(half + t, e.at(t), B);
            }
        }
    }
    // Stores the states before each sub-tile.
    __device__ __forceinline__ void forward_pass(Own& own, int subtiles) const {
        const LanePosition at = lane_position();
#pragma unroll 1
        for (int k = 0;; ++k) {
            store_values(&shared.checkpoint[k][at.channel][at.offset], own.x);
            if (k + 1 == subtiles) break;
            each_token(k, at, [&](int, const ChannelStep& channel, const LaneValues& B) {
                LaneValues decay;
                step(own.x, decay, own, own.x, channel, B);
            });
        }
    }

    // Recomputes the states of sub-tile k and computes its gradients, from the last token to the first.
    __device__ __forceinline__ void backward_pass(Own& own, int k, int tokens, bool any_varies) const {
        LaneValues x[kTokens + 1], decay[kTokens], dpole;
        const LanePosition here = lane_position();
        load_values(x[0], &shared.checkpoint[k][here.channel][here.offset]);
        each_token(k, here, [&](int t, const ChannelStep& channel, const LaneValues& B) {
            step(x[t + 1], decay[t], own, x[t], channel, B);
        });
#pragma unroll
        for (Number& each : dpole) each = Number{};
#pragma unroll
        for (int half = kTokens - kHalf; half >= 0; half -= kHalf) {
            const int first = k * kTokens + half;
            const LanePosition at = kConfig.only_varying ? here : lane_position();  // recomputed where registers are short
            const int channel = at.channel;
            const TokenRows rows_B = rows_of(true, at), rows_C = rows_of(false, at);
            Elements e;
            load_elements(e, channel, first, true);
            float y[kHalf], dinput[kHalf], dstep[kHalf], dsize[kHalf];
#pragma unroll
            for (int t = kHalf - 1; t >= 0; --t) {
                ChannelSlopes slopes;
                LaneValues dB, dC;
#pragma unroll
                for (int s = 0; s < kStates; ++s) dB[s] = dC[s] = Number{};
                y[t] = 0.f;
                if (kTransition == Transition::exponential || first + t < tokens) {
                    LaneValues B, C;
                    load_row(B, rows_B, first + t);
                    load_row(C, rows_C, first + t);
#pragma unroll
                    for (int s = 0; s < kStates; ++s) {
                        const Number before = x[half + t][s], after = x[half + t + 1][s];
                        [[maybe_unused]] Number dB_constant{};
                        if constexpr (kIsRglru) {
                            dB_constant = after * e.cotangent[t] * C[s];
                            dC[s] = after * e.cotangent[t] * own.gain[s];
                            C[s] *= own.gain[s];
                        } else {
                            dC[s] = plus_scaled(dC[s], conjugate(after), e.cotangent[t]);
                        }
                        y[t] = add_real_product(y[t], C[s], after);
                        const Number dx = plus_scaled(own.carry[s], conjugate(C[s]), e.cotangent[t]);
                        own.carry[s] =
                            Gradient::add(own.poles[s], e.at(t), B[s], decay[half + t][s], before, dx, slopes, dpole[s], dB[s]);
                        if constexpr (kIsRglru) dB[s] = dB_constant;
                    }
                }
                if constexpr (!kConfig.only_varying) {
                    if (!in.B.varies) add_values(&shared.constant_dB[at.channel][at.offset], dB);
                    if (!in.C.varies) add_values(&shared.constant_dC[at.channel][at.offset], dC);
                }
                float* to = &shared.exchange[at.channel][t * kColumns + at.offset];
                if (any_varies) {
                    store_values(to, dB);
                    store_values(to + kHalf * kColumns, dC);
                }
                dinput[t] = slopes.input;
                dstep[t] = slopes.step;
                dsize[t] = slopes.size;
            }
            __syncwarp();  // all lanes have read elements, and have written to `exchange`
            if (any_varies) sums.over_channels(k, half, at.thread);
            const int token = sums.over_lanes(dinput, at.thread), row = in_row(channel, first) + token;
            sums.over_lanes(dstep, at.thread);
            if constexpr (has_size(kTransition)) sums.over_lanes(dsize, at.thread);
            sums.over_lanes(y, at.thread);  // also without z, which alone needs it: a branch would wait for the shuffles
            if (at.lane % (kLanes / kHalf) == 0) {  // other lanes have the same sums
                shared.input[channel][row] = dinput[0];
                shared.cotangent[channel][row] = dstep[0];
                if constexpr (has_size(kTransition)) shared.size[channel][row] = dsize[0];
                shared.checkpoint[k][channel][Shared::place_of_output(k, half + token)] = y[0];
            }
            __syncwarp();  // all lanes have read `exchange`
        }
#pragma unroll
        for (int s = 0; s < kStates; ++s) own.dpole[s] = own.dpole[s] + dpole[s];
    }

    __device__ __forceinline__ void run_chunk(Own& own, int chunk) const {
        const int tokens = min(kStateChunk, left(chunk)), subtiles = (tokens + kTokens - 1) / kTokens;
        if constexpr (Poles::kFollowsSteps) anchor(own, tokens);
        forward_pass(own, subtiles);
        const bool any_varies = varies(in.B) || varies(in.C);
        const int warp = sums.warp();
#pragma unroll 1
        for (int k = subtiles - 1; k >= 0; --k) {
            backward_pass(own, k, kTransition == Transition::exponential ? 0 : left(chunk), any_varies);
            if (any_varies) sums.over_warps(k, chunk * kStateChunk + k * kTokens, left(chunk) - k * kTokens, warp);
        }
    }
};

}  // namespace gdn_cuda::scan
