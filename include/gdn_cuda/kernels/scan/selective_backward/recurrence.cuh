// The walk of scan/selective_backward through a chunk. A lane walks its states forward, keeping those before every eight tokens
// (checkpoints, in shared memory). From the last eight tokens to the first, it walks them again, with all states and decays in
// registers, and goes back through them: dx and the states before and after a token are all that the gradients of the token
// need.
#pragma once

#include <gdn_cuda/kernels/common/vector.cuh>
#include <gdn_cuda/kernels/scan/selective_backward/states.cuh>
#include <gdn_cuda/kernels/scan/selective_backward/sums.cuh>

namespace gdn_cuda::scan {

template <SelectiveBackwardConfig kConfig>
struct BackwardWalk : BackwardBlock<kConfig> {
    using Block = BackwardBlock<kConfig>;
    using Block::add_numbers, Block::load_numbers, Block::store_numbers;
    using Block::args, Block::in, Block::place, Block::shared, Block::left, Block::seat, Block::varies;
    using Block::four, Block::in_row;
    using Block::kIsRglru, Block::kTransition, Block::kColumns, Block::kHalf, Block::kLanes, Block::kStates, Block::kTokens;
    using typename Block::Gradient, typename Block::Lanes, typename Block::Number, typename Block::Numbers,
        typename Block::Poles, typename Block::Seat, typename Block::Shared;
    using Own = typename BackwardStates<kConfig>::Own;

    BackwardSums<kConfig> sums;

    // Rows of B or C in shared memory: one for each token of the tile, or the same one for all. An index, as the compiler uses
    // generic loads for a pointer to one of two arrays.
    struct TokenRows {
        int first, pitch;
    };
    __device__ __forceinline__ const float* shared_floats() const { return reinterpret_cast<const float*>(&shared); }
    __device__ __forceinline__ TokenRows rows_of(bool is_B, const Seat& at) const {
        const Coefficients& x = is_B ? in.B : in.C;
        const float* tile = &(is_B ? shared.B : shared.C)[0][0];
        const int from = static_cast<int>(tile - shared_floats()) + at.number;
        if (varies(x)) return {from, kColumns};
        return {from + at.channel * kColumns, 0};
    }
    __device__ __forceinline__ void load_row(Numbers& to, const TokenRows& rows, int token) const {
        load_numbers(to, shared_floats() + rows.first + token * (kConfig.only_varying ? kColumns : rows.pitch));
    }

    // Steps, inputs and so on of four tokens.
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

    // The decays of tokens are rounded, near one always in the same direction where steps are alike, and over a long memory
    // that adds up. Where it may, the decay of the carry over the chunk follows from the sum of its steps: the carry begins
    // with what the decays lack.
    __device__ __forceinline__ static bool rounds_alike(const Poles& pole, float total) {
        return pole.rounds_alike(total, kStateChunk, 5e-5f);
    }
    __device__ __forceinline__ void anchor(Own& own, int tokens) const {
        const Seat at = seat();
        float total = 0.f;
#pragma unroll
        for (int token = 0; token < kStateChunk; token += 4 * kLanes) {
            const float4 x = four(shared.step, at.channel, token + 4 * at.lane);
            total += (x.x + x.y) + (x.z + x.w);
        }
        total = Lanes::sum(total);
        bool any = false;
#pragma unroll
        for (int s = 0; s < kStates; ++s) any |= rounds_alike(own.poles[s], total);
        if (!__any_sync(0xffffffffu, any)) return;
        if constexpr (kConfig.is_complex)
            anchor_phases(own, at, tokens, total);
        else
            anchor_sizes(own, at, tokens, total);
    }
    __device__ __forceinline__ void anchor_sizes(Own& own, const Seat& at, int tokens, float total) const {
        float relative[kStates] = {};  // the product of the decays, minus 1, whose rounding is much finer
#pragma unroll 1
        for (int token = 0; token < tokens; token += kHalf) {
            float steps[kHalf];
            load_four(steps, shared.step, at.channel, token);  // behind the last token, they are 0
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
            if (own.poles[s].long_memory(total, exact) && rounds_alike(own.poles[s], total))
                own.carry[s] = fmaf(own.carry[s], __fdividef(exact - relative[s], 1.f + relative[s]), own.carry[s]);
        }
    }
    // A product of complex decays is rounded no finer than the carry itself. So two more walks through the chunk, side by side,
    // tell what the carry lacks: one from zero, to which the exact decay of the carry is added, and one from the carry, as the
    // walk itself will go.
    __device__ __forceinline__ void anchor_phases(Own& own, const Seat& at, int tokens, float total) const {
        Numbers from_zero{}, walked;
#pragma unroll
        for (int s = 0; s < kStates; ++s) walked[s] = own.carry[s];
        const TokenRows rows = rows_of(false, at);
        ExactSum sum;
#pragma unroll 1
        for (int four = (tokens - 1) / kHalf * kHalf; four >= 0; four -= kHalf) {
            float steps[kHalf], cotangents[kHalf];  // behind the last token, they are 0
            load_four(steps, shared.step, at.channel, four);
            load_four(cotangents, shared.cotangent, at.channel, four);
#pragma unroll
            for (int t = kHalf - 1; t >= 0; --t) {
                sum.add(steps[t]);
                Numbers C;
                load_row(C, rows, four + t);
#pragma unroll
                for (int s = 0; s < kStates; ++s) {
                    const Number decay = own.poles[s].power(steps[t]);
                    from_zero[s] = Gradient::carried(plus_scaled(from_zero[s], conjugate(C[s]), cotangents[t]), decay);
                    walked[s] = Gradient::carried(plus_scaled(walked[s], conjugate(C[s]), cotangents[t]), decay);
                }
            }
        }
#pragma unroll
        for (int s = 0; s < kStates; ++s) {
            if (!rounds_alike(own.poles[s], total)) continue;
            const Number decay = conjugate(own.poles[s].decay_over(sum));
            const Number lacking = plus_product(from_zero[s], decay, own.carry[s]) - walked[s];
            own.carry[s] = own.carry[s] + lacking * inverse(decay);
        }
    }
    // A step of each state, with the decays that it took.
    __device__ __forceinline__ static void step(Numbers& to, Numbers& decay, const Own& own, const Numbers& from,
                                                const ChannelStep& channel, const Numbers& B) {
#pragma unroll
        for (int s = 0; s < kStates; ++s) {
            const Step<Number> step = own.poles[s].step(channel, B[s]);
            decay[s] = step.decay;
            to[s] = after<Poles::kRelative>(from[s], step);
        }
    }
    // Calls `call` with each token of a sub-tile, its elements and its B.
    template <class F>
    __device__ __forceinline__ void each_token(int k, const Seat& at, const F& call) const {
        const TokenRows rows = rows_of(true, at);
#pragma unroll
        for (int half = 0; half < kTokens; half += kHalf) {
            Elements e;
            load_elements(e, at.channel, k * kTokens + half, false);
#pragma unroll
            for (int t = 0; t < kHalf; ++t) {
                Numbers B;
                load_row(B, rows, k * kTokens + half + t);
                call(half + t, e.at(t), B);
            }
        }
    }
    // Keeps the states before each sub-tile.
    __device__ __forceinline__ void walk_forward(Own& own, int subtiles) const {
        const Seat at = seat();
#pragma unroll 1
        for (int k = 0;; ++k) {
            store_numbers(&shared.checkpoint[k][at.channel][at.number], own.x);
            if (k + 1 == subtiles) break;
            each_token(k, at, [&](int, const ChannelStep& channel, const Numbers& B) {
                Numbers decay;
                step(own.x, decay, own, own.x, channel, B);
            });
        }
    }

    // Back through a sub-tile.
    __device__ __forceinline__ void walk_back(Own& own, int k, int tokens, bool any_varies) const {
        Numbers x[kTokens + 1], decay[kTokens], dpole;
        const Seat here = seat();
        load_numbers(x[0], &shared.checkpoint[k][here.channel][here.number]);
        each_token(k, here, [&](int t, const ChannelStep& channel, const Numbers& B) {
            step(x[t + 1], decay[t], own, x[t], channel, B);
        });
#pragma unroll
        for (Number& each : dpole) each = Number{};
#pragma unroll
        for (int half = kTokens - kHalf; half >= 0; half -= kHalf) {
            const int first = k * kTokens + half;
            const Seat at = kConfig.only_varying ? here : seat();  // again where registers are few
            const int channel = at.channel;
            const TokenRows rows_B = rows_of(true, at), rows_C = rows_of(false, at);
            Elements e;
            load_elements(e, channel, first, true);
            float y[kHalf], of_input[kHalf], of_step[kHalf], of_size[kHalf];
#pragma unroll
            for (int t = kHalf - 1; t >= 0; --t) {
                ChannelSlopes slopes;
                Numbers dB, dC;
#pragma unroll
                for (int s = 0; s < kStates; ++s) dB[s] = dC[s] = Number{};
                y[t] = 0.f;
                if (kTransition == Transition::exponential || first + t < tokens) {
                    Numbers B, C;
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
                    if (!in.B.varies) add_numbers(&shared.constant_dB[at.channel][at.number], dB);
                    if (!in.C.varies) add_numbers(&shared.constant_dC[at.channel][at.number], dC);
                }
                float* to = &shared.exchange[at.channel][t * kColumns + at.number];
                if (any_varies) {
                    store_numbers(to, dB);
                    store_numbers(to + kHalf * kColumns, dC);
                }
                of_input[t] = slopes.input;
                of_step[t] = slopes.step;
                of_size[t] = slopes.size;
            }
            __syncwarp();  // all lanes have read elements, and have written to `exchange`
            if (any_varies) sums.over_channels(k, half, at.thread);
            const int token = sums.over_lanes(of_input, at.thread), row = in_row(channel, first) + token;
            sums.over_lanes(of_step, at.thread);
            if constexpr (has_size(kTransition)) sums.over_lanes(of_size, at.thread);
            sums.over_lanes(y, at.thread);          // also where z does not take it: a branch would wait for exchanges
            if (at.lane % (kLanes / kHalf) == 0) {  // others have the same sums
                shared.input[channel][row] = of_input[0];
                shared.cotangent[channel][row] = of_step[0];
                if constexpr (has_size(kTransition)) shared.size[channel][row] = of_size[0];
                shared.checkpoint[k][channel][Shared::place_of_output(k, half + token)] = y[0];
            }
            __syncwarp();  // all lanes have read `exchange`
        }
#pragma unroll
        for (int s = 0; s < kStates; ++s) own.dpole[s] = own.dpole[s] + dpole[s];
    }

    __device__ __forceinline__ void back_through(Own& own, int chunk) const {
        const int tokens = min(kStateChunk, left(chunk)), subtiles = (tokens + kTokens - 1) / kTokens;
        if constexpr (Poles::kFollowsSteps) anchor(own, tokens);
        walk_forward(own, subtiles);
        const bool any_varies = varies(in.B) || varies(in.C);
        const int warp = sums.warp();
#pragma unroll 1
        for (int k = subtiles - 1; k >= 0; --k) {
            walk_back(own, k, kTransition == Transition::exponential ? 0 : left(chunk), any_varies);
            if (any_varies) sums.over_warps(k, chunk * kStateChunk + k * kTokens, left(chunk) - k * kTokens, warp);
        }
    }
};

}  // namespace gdn_cuda::scan
