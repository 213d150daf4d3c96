// scan/selective_backward: the gradients of selective_scan.
//
// A block walks the chunks of a sequence from the last to the first, for 8 to 64 channels in front of four warps. Per chunk,
// it makes a tile of steps, inputs and output gradients in fp32, and one of B and C, in shared memory. A channel's states are
// on a few neighbouring lanes, some on each, and a lane takes one or two channels, one after the other. From the state that
// forward kept before the chunk, a lane first walks the chunk and keeps the states before every eight tokens. Then, from the
// last eight tokens to the first, it walks them again with all states and decays in registers, and goes back through them:
//     dx_t = C dy_t + Ā_{t+1} dx_{t+1}.
// What is summed over states (for u, delta and z) is added up by the lanes of the channel; the gradients of B and C over the
// channels of a lane, of a warp, and through shared memory of the block, whose sums selective_backward_sums adds up. Then a
// pass over the elements of the tile writes the gradients of u, delta, z and delta_a. States beyond one group take further
// launches, which add to `earlier`. All sums have a fixed order.
//
// Bound: instructions: with two channels a lane, 27 a state and token in the walk (two of them exponentials, which take 16
// clocks of a scheduler), and for 16 states about 6 in the passes over elements.
#pragma once

#include <gdn_cuda/kernels/common/varlen.cuh>
#include <gdn_cuda/kernels/common/vector.cuh>
#include <gdn_cuda/kernels/scan/discretization_gradients.cuh>
#include <gdn_cuda/kernels/scan/four.cuh>
#include <gdn_cuda/kernels/scan/selective_backward_plan.cuh>

namespace gdn_cuda::scan {

// Sums each of kCount numbers over kLanes lanes, kDistance apart. A lane keeps kCount / kLanes sums, at least one, in front of
// x; returns which the first of them is.
template <int kLanes, int kDistance, int kCount, int kSize>
__device__ __forceinline__ int sum_over_lanes(float (&x)[kSize], int lane) {
    if constexpr (kLanes == 1) {
        return 0;
    } else if constexpr (kCount == 1) {
        x[0] += __shfl_xor_sync(0xffffffffu, x[0], kLanes / 2 * kDistance);
        return sum_over_lanes<kLanes / 2, kDistance, 1>(x, lane);
    } else {
        constexpr int kHalf = kCount / 2, kPartner = kLanes / 2 * kDistance;
        const bool upper = (lane & kPartner) != 0;
#pragma unroll
        for (int i = 0; i < kHalf; ++i) {
            const float sent = upper ? x[i] : x[i + kHalf], kept = upper ? x[i + kHalf] : x[i];
            x[i] = kept + __shfl_xor_sync(0xffffffffu, sent, kPartner);
        }
        return (upper ? kHalf : 0) + sum_over_lanes<kLanes / 2, kDistance, kHalf>(x, lane);
    }
}

__device__ __forceinline__ float sigmoid_fast(float x) {
    return __fdividef(1.f, 1.f + exp2_fast(fminf(-x * kLog2e, 126.f)));
}

// threadIdx.x, such that what follows from it is computed where it is used: kept through the walk, it would cost registers.
__device__ __forceinline__ int thread_again() {
    unsigned thread = threadIdx.x;
    asm volatile("" : "+r"(thread));
    return static_cast<int>(thread);
}

// The place of a block: channels of one group of B and C, and a sequence.
struct BackwardPlace {
    int channel, channels;  // the first, and how many of the block's exist
    int sequence, batch;
    Span span;
    i64 first_chunk;  // of the sequence
};

template <SelectiveBackwardConfig kConfig>
struct SelectiveBackward {
    using Config = SelectiveBackwardConfig;
    using Shared = SelectiveBackwardSharedPlan<kConfig>;
    static constexpr Transition kTransition = kConfig.transition;
    static constexpr int kChannels = Shared::kChannels, kColumns = Shared::kColumns, kParts = kConfig.parts();
    static constexpr int kLanes = kConfig.lanes, kStates = kConfig.states, kOwn = kConfig.channels, kGroup = kConfig.group();
    static constexpr int kTokens = Config::kTokens, kNumbers = kStates * kParts;
    static constexpr int kUnits = kChannels * kStateChunk / 4 / Config::kThreads;  // of a thread, four elements each
    using Number = scan::Number<kConfig.is_complex>;
    using Poles = Pole<kTransition, kConfig.is_complex>;
    using Gradient = PoleGradient<kTransition, kConfig.is_complex>;
    using Numbers = Number[kStates];

    const SelectiveBackwardArgs& args;
    const SelectiveInputs& in;
    Shared& shared;
    BackwardPlace place;
    int lane, warp;

    static constexpr bool kIsRglru = kTransition == Transition::rglru;

    // ---- What a lane keeps of a channel

    struct Own {
        Poles poles[kStates];
        Number carry[kStates];  // the gradient of the state after the last token still to come
        Number dpole[kStates];
        Number x[kStates];                                                                          // before the chunk
        Number dB[kConfig.only_varying() ? 1 : kStates], dC[kConfig.only_varying() ? 1 : kStates];  // where B or C is constant
        float gain[kIsRglru ? kStates : 1];  // of the output of rglru, whose state has no B
    };

    __device__ __forceinline__ int state_lane() const { return lane % kLanes; }
    __device__ __forceinline__ int channel_of(int own) const {
        return (warp * kOwn + own) * kConfig.channels_per_warp() + lane / kLanes;
    }
    __device__ __forceinline__ int first_number() const { return state_lane() * kNumbers; }
    // Calls with each state that exists and its index in N, for the lane's channel number `own`.
    template <class F>
    __device__ __forceinline__ void each_state(int own, const F& call) const {
        const int thread = thread_again(), warp = thread / 32, lane = thread % 32;
        const int channel = (warp * kOwn + own) * kConfig.channels_per_warp() + lane / kLanes;
        const int first = args.first_state + lane % kLanes * kStates;
#pragma unroll
        for (int s = 0; s < kStates; ++s)
            if (channel < place.channels && first + s < in.state_size) call(s, channel, first + s);
    }
    __device__ __forceinline__ i64 row_of(i64 row, int channel) const {
        return (row * in.dim + place.channel + channel) * in.state_size;
    }
    __device__ __forceinline__ Number number_at(const Coefficients& x, i64 channel, int n) const {
        const float* from = static_cast<const float*>(x.data) + channel * x.group + n * x.n;
        if constexpr (kConfig.is_complex)
            return {from[0], from[x.pair]};
        else
            return from[0];
    }
    __device__ __forceinline__ bool varies(const Coefficients& x) const { return kConfig.only_varying() || x.varies; }

    __device__ __forceinline__ void begin(Own& own, int index) const {
        Number padding{};
        if constexpr (kIsRglru) padding = 0.5f;  // its logarithm is finite
#pragma unroll
        for (int s = 0; s < kStates; ++s) {
            own.poles[s] = Poles::of(padding);
            own.carry[s] = own.dpole[s] = own.x[s] = Number{};
            if constexpr (!kConfig.only_varying()) own.dB[s] = own.dC[s] = Number{};
            if constexpr (kIsRglru) own.gain[s] = 1.f;
        }
        Numbers B, C;
#pragma unroll
        for (int s = 0; s < kStates; ++s) B[s] = C[s] = Number{};
        const auto* last = static_cast<const Number*>(args.grad_last_state);
        each_state(index, [&](int s, int channel, int n) {
            own.poles[s] = Poles::of(number_at(in.A, place.channel + channel, n));
            if (last != nullptr) own.carry[s] = last[row_of(place.sequence, channel) + n];
            if constexpr (!kConfig.only_varying()) {
                if (!in.B.varies) B[s] = number_at(in.B, place.channel + channel, n);
                if (!in.C.varies) C[s] = number_at(in.C, place.channel + channel, n);
                if constexpr (kIsRglru)
                    if (!in.B.varies) own.gain[s] = B[s];
            }
        });
        if constexpr (!kConfig.only_varying()) {
            store_numbers(&shared.constant_B[channel_of(index)][first_number()], B);
            store_numbers(&shared.constant_C[channel_of(index)][first_number()], C);
        }
    }
    __device__ __forceinline__ void load_states(Own& own, int index, i64 chunk) const {
        const auto* from = static_cast<const Number*>(args.states);
#pragma unroll
        for (Number& x : own.x) x = Number{};
        if (chunk < args.chunks)
            each_state(index, [&](int s, int channel, int n) { own.x[s] = from[row_of(chunk, channel) + n]; });
    }
    __device__ __forceinline__ void finish(const Own& own, int index) const {
        each_state(index, [&](int s, int channel, int n) {
            const i64 row = row_of(place.sequence, channel);
            Number dpole = own.dpole[s];
            if constexpr (kIsRglru)
                if (dpole != 0.f) dpole /= number_at(in.A, place.channel + channel, n);
            reinterpret_cast<Number*>(args.dA)[row + n] = dpole;
            if (args.dinitial_state != nullptr) static_cast<Number*>(args.dinitial_state)[row + n] = own.carry[s];
            if constexpr (!kConfig.only_varying()) {
                if (!in.B.varies) reinterpret_cast<Number*>(args.dB_constant)[row + n] = own.dB[s];
                if (!in.C.varies) reinterpret_cast<Number*>(args.dC_constant)[row + n] = own.dC[s];
            }
        });
    }

    // ---- The tiles

    // Four elements of a tile, along tokens or along channels as u lies in memory, which a thread prepares and finishes.
    struct Unit {
        int channel, token;
    };
    __device__ __forceinline__ Unit unit(int i) const {
        constexpr int kRow = kStateChunk / 4, kColumn = kChannels / 4;
        const int index = thread_again() + i * Config::kThreads;
        return args.along_tokens ? Unit{index / kRow, index % kRow * 4} : Unit{index % kColumn * 4, index / kColumn};
    }
    __device__ __forceinline__ int count(const Unit& unit, int tokens) const {
        const int left = place.channels - unit.channel, to_come = tokens - unit.token;
        return left <= 0 || to_come <= 0 ? 0 : min(args.along_tokens ? to_come : left, 4);
    }
    // Four tokens at a time lie elsewhere in each of eight neighbouring channels, and in each eighth one, so that lanes along
    // either do not meet in a bank.
    __device__ __forceinline__ static int in_row(int channel, int token) { return token ^ ((channel ^ channel >> 3) & 7) << 2; }
    __device__ __forceinline__ static float4 four(const float (*tile)[kStateChunk], int channel, int token) {
        return *reinterpret_cast<const float4*>(&tile[channel][in_row(channel, token)]);
    }
    __device__ __forceinline__ void put(float (*tile)[kStateChunk], const Unit& to, const float (&x)[4]) const {
        if (args.along_tokens) {
            *reinterpret_cast<float4*>(&tile[to.channel][in_row(to.channel, to.token)]) = {x[0], x[1], x[2], x[3]};
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) tile[to.channel + i][in_row(to.channel + i, to.token)] = x[i];
        }
    }
    __device__ __forceinline__ void get(float (&x)[4], const float (*tile)[kStateChunk], const Unit& from) const {
        if (args.along_tokens) {
            const float4 y = four(tile, from.channel, from.token);
            x[0] = y.x, x[1] = y.y, x[2] = y.z, x[3] = y.w;
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) x[i] = tile[from.channel + i][in_row(from.channel + i, from.token)];
        }
    }
    // The elements of a thread in one of the tensors, from unit to unit.
    struct Walker {
        char* at;   // null: absent
        i64 apart;  // bytes between the elements of neighbouring units

        __device__ __forceinline__ void next() { at += apart; }
    };
    __device__ __forceinline__ Walker walker(const ChannelRows& x, int first) const {
        if (x.data == nullptr) return {nullptr, 0};
        const Unit begin = unit(0), next = unit(1);
        const int shift = args.io == DType::f32 ? 2 : 1;
        const i64 offset = place.batch * x.batch + (place.channel + begin.channel) * x.channel +
                           (place.span.start + first + begin.token) * x.token;
        const i64 apart = args.along_tokens ? (next.channel - begin.channel) * x.channel : (next.token - begin.token) * x.token;
        return {static_cast<char*>(x.data) + (offset << shift), apart << shift};
    }
    __device__ __forceinline__ i64 step_of(const ChannelRows& x) const { return args.along_tokens ? x.token : x.channel; }

    struct Inputs {
        Walker u, delta, grad_out, z, delta_a;
    };
    struct InFlight {
        Four u, delta, grad_out, z, delta_a;
    };
    __device__ __forceinline__ void load(Four& to, Walker& from, const ChannelRows& x, int count) const {
        if (x.data == nullptr) return;
        to.load(from.at, args.io, step_of(x), count);
        from.next();
    }
    __device__ __forceinline__ void load(InFlight& x, Inputs& from, int count) const {
        load(x.u, from.u, in.u, count);
        load(x.delta, from.delta, in.delta, count);
        load(x.grad_out, from.grad_out, args.grad_out, count);
        load(x.z, from.z, in.z, count);
        load(x.delta_a, from.delta_a, in.delta_a, count);
    }
    // Calls with the elements of each unit, while those of the next are in flight.
    template <class F>
    __device__ __forceinline__ void for_units(int first, int tokens, const F& call) const {
        Inputs from{walker(in.u, first), walker(in.delta, first), walker(args.grad_out, first), walker(in.z, first),
                    walker(in.delta_a, first)};
        InFlight next;
#pragma unroll 1
        for (int i = 0; i <= kUnits; ++i) {
            const InFlight raw = next;
            if (i < kUnits) load(next, from, count(unit(i), tokens));
            if (i > 0) call(raw, unit(i - 1));
        }
    }
    // D or bias of the channels of a unit.
    __device__ __forceinline__ void per_channel(float (&to)[4], const float* from, const Unit& unit) const {
        if (args.along_tokens) {
            to[0] = to[1] = to[2] = to[3] = from[unit.channel];
        } else {
            const float4 x = *reinterpret_cast<const float4*>(from + unit.channel);
            to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
        }
    }
    __device__ __forceinline__ void make_elements(const InFlight& raw, const Unit& unit, int tokens) {
        const int exist = count(unit, tokens);
        const bool has_z = in.z.data != nullptr, has_delta_a = in.delta_a.data != nullptr;
        float u[4], delta[4], delta_a[4] = {}, grad_out[4], z[4] = {};
        raw.u.to_floats(args.io, u);
        raw.delta.to_floats(args.io, delta);
        raw.grad_out.to_floats(args.io, grad_out);
        if (has_z) raw.z.to_floats(args.io, z);
        if (has_delta_a) raw.delta_a.to_floats(args.io, delta_a);
        float bias[4];
        per_channel(bias, shared.bias, unit);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float size = delta[i] + bias[i];
            if (in.delta_softplus) size = softplus_fast(size);
            float step = has_delta_a ? delta_a[i] : size, input = u[i], cotangent = grad_out[i];
            if constexpr (kTransition == Transition::exponential)
                if (args.input_times_delta) input *= size;
            if constexpr (kTransition == Transition::s7) step = -1.f / fmaf(size, size, 0.5f);
            if constexpr (kIsRglru) step = size;
            if (has_z) cotangent *= silu_fast(z[i]);
            const bool exists = i < exist;
            u[i] = exists ? input : 0.f;
            delta[i] = exists ? size : 0.f;
            delta_a[i] = exists ? step : 0.f;
            grad_out[i] = exists ? cotangent * static_cast<float>(kParts) : 0.f;  // y = 2 Re Σ C x of complex numbers
        }
        put(shared.input, unit, u);
        put(shared.step, unit, delta_a);
        put(shared.cotangent, unit, grad_out);
        if constexpr (has_size(kTransition)) put(shared.size, unit, delta);
    }
    // B and C, four real numbers of a token at a time, zeros where they do not exist.
    __device__ __forceinline__ void make_coefficients(int first, int tokens) {
        constexpr int kVector = kColumns < 4 ? kColumns : 4, kRow = kColumns / kVector;
#pragma unroll 1
        for (int which = 0; which < 2; ++which) {
            const Coefficients& from = which == 0 ? in.B : in.C;
            if (!varies(from)) continue;
            auto* to = which == 0 ? shared.B : shared.C;
            const int group = place.channel / (in.dim / from.groups);
            const Tagged values{from.data, from.type};
            const i64 base = place.batch * from.batch + group * from.group + (place.span.start + first) * from.token;
            const bool along_tokens = from.n != kParts;
#pragma unroll 2
            for (int i = thread_again(); i < kStateChunk * kRow; i += Config::kThreads) {
                const int token = along_tokens ? i % kStateChunk : i / kRow, row = along_tokens ? i / kStateChunk : i % kRow;
                unsigned raw[kVector];
#pragma unroll
                for (int j = 0; j < kVector; ++j) {
                    const int column = row * kVector + j, n = args.first_state + column / kParts;
                    const bool exists = token < tokens && n < in.state_size;
                    raw[j] = 0;
                    if (exists) raw[j] = load_raw(values, base + n * from.n + column % kParts * from.pair + token * from.token);
                }
#pragma unroll
                for (int j = 0; j < kVector; ++j) to[token][row * kVector + j] = number_of(raw[j], from.type);
            }
        }
    }

    // ---- The walk

    __device__ __forceinline__ static void load_numbers(Numbers& to, const float* from) {
        float x[kNumbers];
        if constexpr (kNumbers % 4 == 0) {
#pragma unroll
            for (int i = 0; i < kNumbers; i += 4) {
                const float4 part = *reinterpret_cast<const float4*>(from + i);
                x[i] = part.x, x[i + 1] = part.y, x[i + 2] = part.z, x[i + 3] = part.w;
            }
        } else {
#pragma unroll
            for (int i = 0; i < kNumbers; ++i) x[i] = from[i];
        }
#pragma unroll
        for (int s = 0; s < kStates; ++s) {
            if constexpr (kConfig.is_complex)
                to[s] = {x[2 * s], x[2 * s + 1]};
            else
                to[s] = x[s];
        }
    }
    __device__ __forceinline__ static void store_numbers(float* to, const Numbers& from) {
        float x[kNumbers];
#pragma unroll
        for (int s = 0; s < kStates; ++s) {
            if constexpr (kConfig.is_complex)
                x[2 * s] = from[s].re, x[2 * s + 1] = from[s].im;
            else
                x[s] = from[s];
        }
        if constexpr (kNumbers % 4 == 0) {
#pragma unroll
            for (int i = 0; i < kNumbers; i += 4) *reinterpret_cast<float4*>(to + i) = {x[i], x[i + 1], x[i + 2], x[i + 3]};
        } else {
#pragma unroll
            for (int i = 0; i < kNumbers; ++i) to[i] = x[i];
        }
    }
    // Rows of B or C in shared memory: of the tokens of the tile, or the same one for each. By index, as a pointer to one of
    // two arrays would be read as if to any memory.
    struct Rows {
        int first, pitch;
    };
    __device__ __forceinline__ const float* shared_floats() const { return reinterpret_cast<const float*>(&shared); }
    __device__ __forceinline__ Rows rows_of(bool is_B, int channel) const {
        const Coefficients& x = is_B ? in.B : in.C;
        const float* tile = &(is_B ? shared.B : shared.C)[0][0];
        const float* constant = &(is_B ? shared.constant_B : shared.constant_C)[0][0];
        const int of_tile = static_cast<int>(tile - shared_floats()),
                  of_constant = static_cast<int>(constant - shared_floats());
        if (varies(x)) return {of_tile + first_number(), kColumns};
        return {of_constant + channel * kColumns + first_number(), 0};
    }
    __device__ __forceinline__ void load_row(Numbers& to, const Rows& rows, int token) const {
        load_numbers(to, shared_floats() + rows.first + token * (kConfig.only_varying() ? kColumns : rows.pitch));
    }

    // Steps, inputs and so on of a sub-tile.
    struct Elements {
        float step[kTokens], input[kTokens], cotangent[kTokens], size[kTokens];

        __device__ __forceinline__ ChannelStep at(int t) const { return {step[t], input[t], size[t]}; }
    };
    __device__ __forceinline__ static void load_eight(float (&to)[kTokens], const float (*tile)[kStateChunk], int channel,
                                                      int token) {
#pragma unroll
        for (int i = 0; i < kTokens; i += 4) {
            const float4 x = four(tile, channel, token + i);
            to[i] = x.x, to[i + 1] = x.y, to[i + 2] = x.z, to[i + 3] = x.w;
        }
    }
    __device__ __forceinline__ void load_elements(Elements& x, int channel, int token, bool with_cotangents) const {
        load_eight(x.step, shared.step, channel, token);
        load_eight(x.input, shared.input, channel, token);
        if (with_cotangents) load_eight(x.cotangent, shared.cotangent, channel, token);
        if constexpr (has_size(kTransition)) {
            load_eight(x.size, shared.size, channel, token);
        } else {
#pragma unroll
            for (int i = 0; i < kTokens; ++i) x.size[i] = 0.f;
        }
    }

    // The steps of the chunk, added up by the lanes of the channel.
    __device__ __forceinline__ float total_step(int channel) const {
        float total = 0.f;
#pragma unroll
        for (int token = 4 * state_lane(); token < kStateChunk; token += 4 * kLanes) {
            const float4 x = four(shared.step, channel, token);
            total += (x.x + x.y) + (x.z + x.w);
        }
        return group_sum<kLanes>(total);
    }
    // Keeps the states before each sub-tile. With kAnchors, also takes the decay of the carry over the chunk from the sum of
    // its steps: the decays of tokens are rounded, near one always in the same direction where steps are alike, and over a long
    // memory that adds up. The carry begins with what they lack.
    template <bool kAnchors>
    __device__ __forceinline__ void walk_forward(Own& own, int channel, int subtiles, float total) {
        const Rows rows = rows_of(true, channel);
        float relative[kAnchors ? kStates : 1] = {};  // the product of the decays, minus 1, whose rounding is much finer
#pragma unroll 1
        for (int k = 0; k < subtiles; ++k) {
            store_numbers(&shared.checkpoint[k][channel][first_number()], own.x);
            if (!kAnchors && k + 1 == subtiles) break;
            Elements e;
            load_elements(e, channel, k * kTokens, false);
#pragma unroll
            for (int t = 0; t < kTokens; ++t) {
                Numbers B;
                load_row(B, rows, k * kTokens + t);
#pragma unroll
                for (int s = 0; s < kStates; ++s) {
                    const Step<Number> step = own.poles[s].step(e.at(t), B[s]);
                    own.x[s] = after<Poles::kRelative>(own.x[s], step);
                    if constexpr (kAnchors) relative[s] = fmaf(relative[s], step.decay, step.decay - 1.f);
                }
            }
        }
        if constexpr (kAnchors)
#pragma unroll
            for (int s = 0; s < kStates; ++s) {
                float exact;
                if (own.poles[s].long_memory(total, exact) && own.poles[s].rounds_alike(total, kStateChunk))
                    own.carry[s] = fmaf(own.carry[s], __fdividef(exact - relative[s], 1.f + relative[s]), own.carry[s]);
            }
    }
    __device__ __forceinline__ void walk_forward(Own& own, int channel, int subtiles) {
        if constexpr (!Poles::kRelative) {
            const float total = total_step(channel);
            bool any = false;
#pragma unroll
            for (int s = 0; s < kStates; ++s) any |= own.poles[s].rounds_alike(total, kStateChunk);
            if (__any_sync(0xffffffffu, any)) return walk_forward<true>(own, channel, subtiles, total);
        }
        walk_forward<false>(own, channel, subtiles, 0.f);
    }

    // Gradients of B and C for the lane's states, summed over its channels.
    struct Sums {
        float x[2 * kTokens * kNumbers];

        __device__ __forceinline__ Number of(int which, int t, int s) const {
            const float* from = &x[(which * kTokens + t) * kNumbers + s * kParts];
            if constexpr (kConfig.is_complex)
                return {from[0], from[1]};
            else
                return from[0];
        }
        __device__ __forceinline__ void set(int which, int t, int s, Number y) {
            float* to = &x[(which * kTokens + t) * kNumbers + s * kParts];
            if constexpr (kConfig.is_complex) {
                to[0] = y.re;
                to[1] = y.im;
            } else {
                to[0] = y;
            }
        }
        __device__ __forceinline__ Number over_tokens(int which, int s) const {
            float sum[kParts] = {};
#pragma unroll
            for (int t = 0; t < kTokens; ++t)
#pragma unroll
                for (int part = 0; part < kParts; ++part) sum[part] += x[(which * kTokens + t) * kNumbers + s * kParts + part];
            if constexpr (kConfig.is_complex)
                return {sum[0], sum[1]};
            else
                return sum[0];
        }
    };

    // Back through a sub-tile of one channel.
    __device__ __forceinline__ void walk_back(Own& own, int channel, int k, int tokens, Sums& sums) {
        const int first = k * kTokens;
        const Rows rows_B = rows_of(true, channel), rows_C = rows_of(false, channel);
        const bool with_outputs = in.z.data != nullptr;
        Elements e;
        load_elements(e, channel, first, true);
        Numbers x, before[kTokens], decay[kTokens];
        load_numbers(x, &shared.checkpoint[k][channel][first_number()]);
        float y[kTokens];
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
            Numbers B, C;
            load_row(B, rows_B, first + t);
            load_row(C, rows_C, first + t);
            y[t] = 0.f;
#pragma unroll
            for (int s = 0; s < kStates; ++s) {
                const Step<Number> step = own.poles[s].step(e.at(t), B[s]);
                before[t][s] = x[s];
                decay[t][s] = step.decay;
                x[s] = after<Poles::kRelative>(x[s], step);
                if constexpr (kIsRglru) {
                    y[t] = fmaf(C[s] * own.gain[s], x[s], y[t]);
                    sums.set(0, t, s, x[s] * e.cotangent[t] * C[s]);
                    sums.set(1, t, s, x[s] * e.cotangent[t] * own.gain[s]);
                } else {
                    y[t] = add_real_product(y[t], C[s], x[s]);
                    sums.set(1, t, s, plus_scaled(sums.of(1, t, s), conjugate(x[s]), e.cotangent[t]));
                }
            }
        }
        float of_input[kTokens], of_step[kTokens], of_size[kTokens];
        Numbers dpole;
#pragma unroll
        for (Number& each : dpole) each = Number{};
#pragma unroll
        for (int t = kTokens - 1; t >= 0; --t) {
            ChannelSlopes slopes;
            if (kTransition == Transition::exponential || first + t < tokens) {
                Numbers B, C;
                load_row(B, rows_B, first + t);
                load_row(C, rows_C, first + t);
#pragma unroll
                for (int s = 0; s < kStates; ++s) {
                    if constexpr (kIsRglru) C[s] *= own.gain[s];
                    const Number dx = plus_scaled(own.carry[s], conjugate(C[s]), e.cotangent[t]);
                    Number dB = sums.of(0, t, s);
                    own.carry[s] = Gradient::add(own.poles[s], e.at(t), B[s], decay[t][s], before[t][s], dx,
                                                 args.most_root_gradient, slopes, dpole[s], dB);
                    if constexpr (!kIsRglru) sums.set(0, t, s, dB);
                }
            }
            of_input[t] = slopes.input;
            of_step[t] = slopes.step;
            of_size[t] = slopes.size;
        }
#pragma unroll
        for (int s = 0; s < kStates; ++s) own.dpole[s] = own.dpole[s] + dpole[s];
        store_slopes(shared.input, channel, first, of_input);
        store_slopes(shared.cotangent, channel, first, of_step);
        if constexpr (has_size(kTransition)) store_slopes(shared.size, channel, first, of_size);
        if (with_outputs) {
            const int token = sum_over_lanes<kLanes, 1, kTokens>(y, lane);
            __syncwarp();
            store_sums(&shared.checkpoint[k][channel][token], y);
        }
    }
    __device__ __forceinline__ static float conjugate(float x) { return x; }
    __device__ __forceinline__ static ComplexNumber<float> conjugate(ComplexNumber<float> x) { return x.conjugate(); }

    // To the gradients of constant B and C.
    __device__ __forceinline__ void keep_constant(Own& own, const Sums& sums) const {
        if constexpr (!kConfig.only_varying())
#pragma unroll
            for (int s = 0; s < kStates; ++s) {
                if (!in.B.varies) own.dB[s] = own.dB[s] + sums.over_tokens(0, s);
                if (!in.C.varies) own.dC[s] = own.dC[s] + sums.over_tokens(1, s);
            }
    }
    // Sums over the states of a channel to the tokens of its row.
    __device__ __forceinline__ void store_slopes(float (*tile)[kStateChunk], int channel, int first,
                                                 float (&x)[kTokens]) const {
        const int token = sum_over_lanes<kLanes, 1, kTokens>(x, lane);
        __syncwarp();  // all lanes have read the sub-tile
        store_sums(&tile[channel][in_row(channel, first + (token & ~3)) + (token & 3)], x);
    }
    // The sums that sum_over_lanes leaves with a lane, four tokens apart at a time in a row.
    __device__ __forceinline__ void store_sums(float* to, const float (&x)[kTokens]) const {
        constexpr int kKept = kLanes < kTokens ? kTokens / kLanes : 1;
        static_assert(kKept <= 4);
        if (state_lane() % (kLanes > kTokens ? kLanes / kTokens : 1) != 0) return;  // others have the same sum
#pragma unroll
        for (int i = 0; i < kKept; ++i) to[i] = x[i];
    }

    __device__ __forceinline__ void sum_channels(Sums& sums, int buffer) {
        constexpr int kOver = kConfig.channels_per_warp(), kAll = 2 * kTokens * kNumbers, kKept = kAll / kOver;
        static_assert(kKept >= kNumbers && kKept % kNumbers == 0);
        const int first = sum_over_lanes<kOver, kLanes, kAll>(sums.x, lane);
#pragma unroll
        for (int i = 0; i < kKept; i += kNumbers) {
            const int row = (first + i) / kNumbers;  // which and token
            float* to = &shared.sums[buffer][warp][row / kTokens][row % kTokens][first_number()];
            if constexpr (kNumbers == 4) {
                *reinterpret_cast<float4*>(to) = {sums.x[i], sums.x[i + 1], sums.x[i + 2], sums.x[i + 3]};
            } else {
#pragma unroll
                for (int j = 0; j < kNumbers; ++j) to[j] = sums.x[i + j];
            }
        }
    }
    // Where the sums of the block begin.
    __device__ __forceinline__ float* partial_of(bool is_B) const {
        const Coefficients& of = is_B ? in.B : in.C;
        const int partials = is_B ? args.partials_B : args.partials_C;
        const int block = static_cast<int>(blockIdx.x), group = block / partials, partial = block - group * partials;
        const i64 row = (static_cast<i64>(partial) * args.rows + (place.batch - args.first_row)) * of.groups + group;
        return (is_B ? args.dB : args.dC) + (row * in.length + place.span.start) * kColumns;
    }
    // Of all warps, to memory.
    __device__ __forceinline__ void write_sums(int buffer, int token, int tokens) const {
        constexpr int kOfOne = kTokens * kColumns;
        const int thread = thread_again();
#pragma unroll
        for (int which = 0; which < 2; ++which) {
            if (!varies(which == 0 ? in.B : in.C)) continue;
            float* to = shared.partial[which] + static_cast<i64>(token) * kColumns;
#pragma unroll
            for (int i = 0; i < kOfOne; i += Config::kThreads) {
                const int index = i + thread;
                if (kOfOne % Config::kThreads != 0 && index >= kOfOne) break;
                float sum = 0.f;
                if (!kIsRglru || which == 1)
#pragma unroll
                    for (int w = 0; w < Config::kWarps; ++w) sum += (&shared.sums[buffer][w][which][0][0])[index];
                if (index < tokens * kColumns) to[index] = sum;  // columns past the last state are not read again
            }
        }
    }

    __device__ __forceinline__ void walk(Own (&own)[kOwn], int first, int tokens) {
        const int subtiles = (tokens + kTokens - 1) / kTokens;
#pragma unroll
        for (int j = 0; j < kOwn; ++j) walk_forward(own[j], channel_of(j), subtiles);
        const bool any_varies = varies(in.B) || varies(in.C);
#pragma unroll 1
        for (int k = subtiles - 1; k >= 0; --k) {
            Sums sums;
#pragma unroll
            for (float& x : sums.x) x = 0.f;
#pragma unroll
            for (int j = 0; j < kOwn; ++j) walk_back(own[j], channel_of(j), k, tokens, sums);
            keep_constant(own[0], sums);
            if (!any_varies) continue;
            const int buffer = kConfig.buffers() == 1 ? 0 : k % 2;
            sum_channels(sums, buffer);
            __syncthreads();
            write_sums(buffer, first + k * kTokens, tokens - k * kTokens);
            if constexpr (kConfig.buffers() == 1) __syncthreads();
        }
    }

    // ---- The gradients of the elements

    struct Outputs {
        Walker u, delta, z, delta_a;
    };
    __device__ __forceinline__ void store(Walker& to, const ChannelRows& x, int count, const float (&y)[4]) const {
        if (x.data == nullptr) return;
        Four::store(to.at, args.io, step_of(x), count, y);
        to.next();
    }

    // Σ over the states of earlier passes is added; before the last pass, kept.
    __device__ __forceinline__ void with_earlier(float (&x)[4], int which, const Unit& unit, int first, int exist) const {
        if (args.first_pass && args.last_pass) return;
        const i64 row = (static_cast<i64>(which) * in.batch + place.batch) * in.dim + place.channel + unit.channel;
        float* at = args.earlier + row * in.length + place.span.start + first + unit.token;
        const i64 step = args.along_tokens ? 1 : in.length;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (i >= exist) continue;
            if (!args.first_pass) x[i] += at[i * step];
            if (!args.last_pass) at[i * step] = x[i];
        }
    }
    __device__ __forceinline__ void finish_elements(const InFlight& raw, Outputs& to, const Unit& unit, int first, int tokens) {
        const int exist = count(unit, tokens);
        const bool has_z = in.z.data != nullptr, has_delta_a = in.delta_a.data != nullptr;
        float of_input[4], of_step[4], of_size[4] = {}, y[4] = {}, step[4];
        get(of_input, shared.input, unit);
        get(of_step, shared.cotangent, unit);
#pragma unroll
        for (float& x : of_step) x *= Gradient::kStepUnit;
        get(step, shared.step, unit);
        if (has_z) {
            auto* from = &shared.checkpoint[unit.token / kTokens][unit.channel][unit.token % kTokens];
            const int step = args.along_tokens ? 1 : Shared::kCheckpoint;
#pragma unroll
            for (int i = 0; i < 4; ++i) y[i] = from[i * step];
        }
        with_earlier(of_input, 0, unit, first, exist);
        with_earlier(of_step, 1, unit, first, exist);
        if (has_z) with_earlier(y, 2, unit, first, exist);
        if constexpr (has_size(kTransition)) {
            get(of_size, shared.size, unit);
            with_earlier(of_size, 3, unit, first, exist);
        }
        if (!args.last_pass) return;

        float u[4], delta[4], grad_out[4], z[4] = {}, dz[4] = {};
        raw.u.to_floats(args.io, u);
        raw.delta.to_floats(args.io, delta);
        raw.grad_out.to_floats(args.io, grad_out);
        if (has_z) raw.z.to_floats(args.io, z);
        float of_D[4], bias[4], D[4];
        per_channel(bias, shared.bias, unit);
        per_channel(D, shared.D, unit);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float before_softplus = delta[i] + bias[i];
            float d_size = of_size[i], du = of_input[i];
            if constexpr (kTransition == Transition::exponential) {
                if (args.input_times_delta) {
                    float size = step[i];
                    if (has_delta_a) size = in.delta_softplus ? softplus_fast(before_softplus) : before_softplus;
                    d_size = u[i] * of_input[i];
                    du = size * of_input[i];
                }
            }
            if constexpr (kTransition == Transition::s7) {
                const float size = in.delta_softplus ? softplus_fast(before_softplus) : before_softplus;
                d_size = 2.f * size * step[i] * step[i] * of_step[i];
            } else if constexpr (kTransition == Transition::rglru) {
                d_size = of_step[i];
            } else {
                if (!has_delta_a) d_size += of_step[i];
            }
            if (in.delta_softplus && before_softplus <= 20.f) d_size *= sigmoid_fast(before_softplus);
            float cotangent = grad_out[i];
            if (has_z) {
                const float gate = sigmoid_fast(z[i]), out = fmaf(D[i], u[i], y[i] * static_cast<float>(kParts));
                dz[i] = grad_out[i] * out * gate * fmaf(z[i], 1.f - gate, 1.f);
                cotangent *= z[i] * gate;
            }
            du = fmaf(D[i], cotangent, du);
            of_D[i] = i < exist ? cotangent * u[i] : 0.f;
            u[i] = du;
            delta[i] = i < exist ? d_size : 0.f;
        }
        store(to.u, args.du, exist, u);
        store(to.delta, args.ddelta, exist, delta);
        store(to.z, args.dz, exist, dz);
        if (has_delta_a) {
            if constexpr (kTransition == Transition::s7 || kTransition == Transition::rglru)
#pragma unroll
                for (float& x : of_step) x = 0.f;
            store(to.delta_a, args.ddelta_a, exist, of_step);
        }
        // For sum_elements.
        put(shared.input, unit, of_D);
        put(shared.cotangent, unit, delta);
    }
    // The gradient of D or of the bias, over the tokens of a chunk.
    __device__ __forceinline__ void sum_elements(int which, int channel) {
        const auto* tile = which == 0 ? shared.input : shared.cotangent;
        float sum = 0.f;
#pragma unroll 4
        for (int token = 0; token < kStateChunk; token += 4) {
            const float4 x = four(tile, channel, token);
            sum += (x.x + x.y) + (x.z + x.w);
        }
        shared.element_sums[which][channel] += sum;
    }

    __device__ __forceinline__ void run() {
        Own own[kOwn];
#pragma unroll
        for (int j = 0; j < kOwn; ++j) begin(own[j], j);
        // A thread sums the gradient of D or of the bias of a channel.
        static_assert(2 * kChannels <= Config::kThreads);
        if (threadIdx.x < kChannels) {
            const int channel = threadIdx.x;
            const bool exists = channel < place.channels;
            shared.D[channel] = exists && in.D != nullptr ? in.D[place.channel + channel] : 0.f;
            shared.bias[channel] = exists && in.delta_bias != nullptr ? in.delta_bias[place.channel + channel] : 0.f;
        }
        if (threadIdx.x < 2 * kChannels) shared.element_sums[threadIdx.x / kChannels][threadIdx.x % kChannels] = 0.f;
        if (threadIdx.x < 2)
            shared.partial[threadIdx.x] = varies(threadIdx.x == 0 ? in.B : in.C) ? partial_of(threadIdx.x == 0) : nullptr;
        __syncthreads();

        const int length = place.span.length, chunks = (length + kStateChunk - 1) / kStateChunk;
#pragma unroll 1
        for (int chunk = chunks - 1; chunk >= 0; --chunk) {
            const int first = chunk * kStateChunk, tokens = min(kStateChunk, length - first);
#pragma unroll
            for (int j = 0; j < kOwn; ++j) load_states(own[j], j, place.first_chunk + chunk);
            for_units(first, tokens, [&](const InFlight& raw, const Unit& unit) { make_elements(raw, unit, tokens); });
            make_coefficients(first, tokens);
            __syncthreads();
            walk(own, first, tokens);
            __syncthreads();
            Outputs outputs{walker(args.du, first), walker(args.ddelta, first), walker(args.dz, first),
                            walker(args.ddelta_a, first)};
            for_units(first, tokens,
                      [&](const InFlight& raw, const Unit& unit) { finish_elements(raw, outputs, unit, first, tokens); });
            __syncthreads();
            if (args.last_pass && (args.dD != nullptr || args.ddelta_bias != nullptr)) {
                const int thread = thread_again();
                if (thread < 2 * kChannels) sum_elements(thread / kChannels, thread % kChannels);
                __syncthreads();
            }
        }
#pragma unroll
        for (int j = 0; j < kOwn; ++j) finish(own[j], j);
        if (args.last_pass && threadIdx.x < 2 * kChannels) {
            const int which = threadIdx.x / kChannels, channel = threadIdx.x % kChannels;
            float* to = which == 0 ? args.dD : args.ddelta_bias;
            if (to != nullptr && channel < place.channels)
                to[static_cast<i64>(place.sequence) * in.dim + place.channel + channel] = shared.element_sums[which][channel];
        }
    }
};

template <SelectiveBackwardConfig kConfig>
__global__ void __launch_bounds__(SelectiveBackwardConfig::kThreads, kConfig.blocks_per_multiprocessor())
    selective_backward(const __grid_constant__ SelectiveBackwardArgs args) {
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<SelectiveBackwardSharedPlan<kConfig>*>(memory);
    static_assert(sizeof(shared) <= kSharedBytesEverywhere);
    const SelectiveInputs& in = args.in;
    const bool packed = in.cu_seqlens.data != nullptr;
    const int sequence = args.first_sequence + blockIdx.y;
    const int blocks_of_span = static_cast<int>(ceil_div(args.channels_per_span, kConfig.channels_per_block()));
    const int inside = blockIdx.x % blocks_of_span * kConfig.channels_per_block();
    BackwardPlace place{.channel = static_cast<int>(blockIdx.x) / blocks_of_span * args.channels_per_span + inside,
                        .channels = min(args.channels_per_span - inside, kConfig.channels_per_block()),
                        .sequence = sequence,
                        .batch = packed ? 0 : sequence,
                        .span = span_of(in.cu_seqlens, sequence, in.length),
                        .first_chunk = 0};
    if (packed) {
        for (int i = 0; i < sequence; ++i)
            place.first_chunk += ceil_div(span_of(in.cu_seqlens, i, in.length).length, kStateChunk);
    } else {
        place.first_chunk = sequence * ceil_div(in.length, kStateChunk);
    }
    SelectiveBackward<kConfig>{args, in, shared, place, static_cast<int>(threadIdx.x) % 32, static_cast<int>(threadIdx.x) / 32}
        .run();
}

}  // namespace gdn_cuda::scan
