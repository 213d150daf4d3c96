// scan/selective_backward: the gradients of selective_scan.
//
// A block walks the chunks of a sequence from the last to the first, for 8 to 32 channels in front of four warps. Per chunk,
// it makes a tile of steps, inputs and output gradients in fp32, and one of B and C, in shared memory. A channel's states are
// on a few neighbouring lanes, some on each. From the state that forward kept before the chunk, a lane first walks the chunk
// and keeps the states before every eight tokens. Then, from the last eight tokens to the first, it walks them again with all
// states and decays in registers, and goes back through them, four tokens at a time:
//     dx_t = C dy_t + Ā_{t+1} dx_{t+1}.
// What is summed over states (for u, delta and z) is added up by the lanes of the channel. The gradients of B and C of four
// tokens go to shared memory, where each lane of the warp adds up some of them over its channels; these sums are added up over
// the warps, and by selective_backward_sums over the blocks. Then a pass over the elements of the tile writes the gradients of
// u, delta, z and delta_a. States beyond one group take further launches, which add to `earlier`. All sums have a fixed order.
//
// Elements are read and written four at a time where the host has found aligned vectors and the tile is whole, and one at a
// time in a short loop otherwise.
//
// Bound: instructions. The loop over eight tokens is written to be short, as all warps together run it from the instruction
// cache.
#pragma once

#include <gdn_cuda/kernels/common/varlen.cuh>
#include <gdn_cuda/kernels/common/vector.cuh>
#include <gdn_cuda/kernels/scan/discretization_gradients.cuh>
#include <gdn_cuda/kernels/scan/four.cuh>
#include <gdn_cuda/kernels/scan/selective_backward_plan.cuh>
#include <gdn_cuda/kernels/scan/selective_piece.cuh>

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
    return reciprocal(1.f + exp2_fast(-x * kLog2e));
}

// threadIdx.x, such that what follows from it is computed where it is used: kept through the walk, it would cost registers.
__device__ __forceinline__ int thread_again() {
    unsigned thread = threadIdx.x;
    asm volatile("" : "+r"(thread));
    return static_cast<int>(thread);
}

template <SelectiveBackwardConfig kConfig>
struct SelectiveBackward {
    using Config = SelectiveBackwardConfig;
    using Shared = SelectiveBackwardSharedPlan<kConfig>;
    static constexpr Transition kTransition = kConfig.transition;
    static constexpr int kChannels = Shared::kChannels, kColumns = Shared::kColumns, kParts = kConfig.parts();
    static constexpr int kLanes = kConfig.lanes, kStates = kConfig.states, kGroup = kConfig.group();
    static constexpr int kTokens = Config::kTokens, kNumbers = kStates * kParts, kHalf = 4;  // tokens of half a sub-tile
    static constexpr int kUnits = kChannels * kStateChunk / 4 / Config::kThreads;            // of a thread, four elements each
    using Number = scan::Number<kConfig.is_complex>;
    using Poles = Pole<kTransition, kConfig.is_complex>;
    using Gradient = PoleGradient<kTransition, kConfig.is_complex>;
    using Numbers = Number[kStates];

    const SelectiveBackwardArgs& args;
    const SelectiveInputs& in;
    Shared& shared;
    const BackwardPlace& place;

    static constexpr bool kIsRglru = kTransition == Transition::rglru;

    // ---- What a lane keeps of a channel

    struct Own {
        Poles poles[kStates];
        Number carry[kStates];  // the gradient of the state after the last token still to come
        Number dpole[kStates];
        Number x[kStates];                   // before the chunk
        float gain[kIsRglru ? kStates : 1];  // of the output of rglru, whose state has no B
    };

    // The states of a thread: a channel, and the first of their real numbers in a row.
    struct Seat {
        int thread, channel, number;
    };
    __device__ __forceinline__ static Seat seat() {
        const int thread = thread_again();
        return {thread, thread / kLanes, thread % kLanes * kNumbers};
    }
    // Calls with each state that exists and its index in N.
    template <class F>
    __device__ __forceinline__ void each_state(const F& call) const {
        const int thread = thread_again(), channel = thread / kLanes, first = args.first_state + thread % kLanes * kStates;
#pragma unroll
        for (int s = 0; s < kStates; ++s)
            if (channel < place.channels && first + s < in.state_size) call(s, channel, first + s);
    }
    __device__ __forceinline__ i64 row_of(i64 row, int channel) const {
        return (row * in.dim + place.channel + channel) * in.state_size;
    }
    __device__ __forceinline__ i64 row_of_piece() const {
        return static_cast<i64>(place.piece) * in.sequences + place.sequence;
    }
    __device__ __forceinline__ Number number_at(const Coefficients& x, i64 channel, int n) const {
        const float* from = static_cast<const float*>(x.data) + channel * x.group + n * x.n;
        if constexpr (kConfig.is_complex)
            return {from[0], from[x.pair]};
        else
            return from[0];
    }
    __device__ __forceinline__ bool varies(const Coefficients& x) const { return kConfig.only_varying || x.varies; }

    __device__ __forceinline__ void begin(Own& own) const {
        Number padding{};
        if constexpr (kIsRglru) padding = 0.5f;  // its logarithm is finite
#pragma unroll
        for (int s = 0; s < kStates; ++s) {
            own.poles[s] = Poles::of(padding);
            own.carry[s] = own.dpole[s] = own.x[s] = Number{};
            if constexpr (kIsRglru) own.gain[s] = 1.f;
        }
        Numbers B, C;
#pragma unroll
        for (int s = 0; s < kStates; ++s) B[s] = C[s] = Number{};
        const auto* last = static_cast<const Number*>(args.grad_last_state);
        each_state([&](int s, int channel, int n) {
            own.poles[s] = Poles::of(number_at(in.A, place.channel + channel, n));
            if (last != nullptr) own.carry[s] = last[row_of(row_of_piece(), channel) + n];
            if constexpr (!kConfig.only_varying) {
                if (!in.B.varies) B[s] = number_at(in.B, place.channel + channel, n);
                if (!in.C.varies) C[s] = number_at(in.C, place.channel + channel, n);
                if constexpr (kIsRglru)
                    if (!in.B.varies) own.gain[s] = B[s];
            }
        });
        if constexpr (!kConfig.only_varying) {
            const Seat at = seat();
            // Without tokens, a tile has a row for each channel.
            store_numbers(&shared.B[at.channel][at.number], B);
            store_numbers(&shared.C[at.channel][at.number], C);
            const Numbers zeros{};
            store_numbers(&shared.constant_dB[at.channel][at.number], zeros);
            store_numbers(&shared.constant_dC[at.channel][at.number], zeros);
        }
    }
    __device__ __forceinline__ void load_states(Own& own, i64 chunk) const {
        const auto* from = static_cast<const Number*>(args.states);
#pragma unroll
        for (Number& x : own.x) x = Number{};
        if (chunk < args.chunks) each_state([&](int s, int channel, int n) { own.x[s] = from[row_of(chunk, channel) + n]; });
    }
    __device__ __forceinline__ void finish(const Own& own) const {
        Numbers dB{}, dC{};
        if constexpr (!kConfig.only_varying) {
            const Seat at = seat();
            load_numbers(dB, &shared.constant_dB[at.channel][at.number]);
            load_numbers(dC, &shared.constant_dC[at.channel][at.number]);
        }
        each_state([&](int s, int channel, int n) {
            const i64 row = row_of(row_of_piece(), channel);
            Number dpole = own.dpole[s];
            if constexpr (kIsRglru)
                if (dpole != 0.f) dpole /= number_at(in.A, place.channel + channel, n);
            reinterpret_cast<Number*>(args.dA)[row + n] = dpole;
            if (args.dinitial_state != nullptr && place.piece == 0)
                static_cast<Number*>(args.dinitial_state)[row_of(place.sequence, channel) + n] = own.carry[s];
            if constexpr (!kConfig.only_varying) {
                if (!in.B.varies) reinterpret_cast<Number*>(args.dB_constant)[row + n] = dB[s];
                if (!in.C.varies) reinterpret_cast<Number*>(args.dC_constant)[row + n] = dC[s];
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
    // Four tokens at a time lie elsewhere in each of eight neighbouring channels, and in each eighth one, so that lanes along
    // either do not meet in a bank.
    __device__ __forceinline__ static int in_row(int channel, int token) { return token ^ ((channel ^ channel >> 3) & 7) << 2; }
    __device__ __forceinline__ static float4 four(const float (*tile)[kStateChunk], int channel, int token) {
        return *reinterpret_cast<const float4*>(&tile[channel][in_row(channel, token)]);
    }
    // One element, or the four of a unit, of several tiles.
    using Tile = float (*)[kStateChunk];
    template <int kTiles, int kCount>
    __device__ __forceinline__ void put(const Tile (&tiles)[kTiles], const Unit& to, const float (&x)[kTiles][kCount]) const {
        const int row = in_row(to.channel, to.token);
        if (kCount == 4 && args.along_tokens) {
#pragma unroll
            for (int tile = 0; tile < kTiles; ++tile)
                *reinterpret_cast<float4*>(&tiles[tile][to.channel][row]) = {x[tile][0], x[tile][kCount / 4],
                                                                             x[tile][kCount / 2], x[tile][kCount - 1]};
        } else {  // in_row, of channels that differ in their lowest bits
#pragma unroll
            for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
                for (int i = 0; i < kCount; ++i) tiles[tile][to.channel + i][row ^ i << 2] = x[tile][i];
        }
    }
    template <int kTiles, int kCount>
    __device__ __forceinline__ void get(float (&x)[kTiles][kCount], const Tile (&tiles)[kTiles], const Unit& from) const {
        const int row = in_row(from.channel, from.token);
        if (kCount == 4 && args.along_tokens) {
#pragma unroll
            for (int tile = 0; tile < kTiles; ++tile) {
                const float4 y = *reinterpret_cast<const float4*>(&tiles[tile][from.channel][row]);
                x[tile][0] = y.x, x[tile][kCount / 4] = y.y, x[tile][kCount / 2] = y.z, x[tile][kCount - 1] = y.w;
            }
        } else {
#pragma unroll
            for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
                for (int i = 0; i < kCount; ++i) x[tile][i] = tiles[tile][from.channel + i][row ^ i << 2];
        }
    }
    // D or bias of the channels of a unit.
    template <int kCount>
    __device__ __forceinline__ void per_channel(float (&to)[kCount], const float* from, const Unit& unit) const {
#pragma unroll
        for (int i = 0; i < kCount; ++i) to[i] = from[unit.channel + (args.along_tokens ? 0 : i)];
    }

    using Rows = typename Shared::Rows;
    __device__ __forceinline__ Rows rows_of(const ChannelRows& x) const {
        const i64 offset = place.batch * x.batch + place.channel * x.channel + place.start * x.token;
        const int shift = args.io == DType::f32 ? 2 : 1;
        return {static_cast<char*>(x.data) + (offset << shift), static_cast<unsigned>(x.channel) << shift,
                static_cast<unsigned>(x.token) << shift};
    }
    __device__ __forceinline__ char* base_of(const Coefficients& x) const {
        const i64 offset = place.batch * x.batch + place.channel / (in.dim / x.groups) * x.group + args.first_state * x.n +
                           place.start * x.token;
        return static_cast<char*>(x.data) + (offset << (x.type == DType::f32 ? 2 : 1));
    }
    __device__ __forceinline__ void keep_rows() {
        shared.u = rows_of(in.u), shared.delta = rows_of(in.delta), shared.grad_out = rows_of(args.grad_out);
        shared.z = rows_of(in.z), shared.delta_a = rows_of(in.delta_a);
        shared.du = rows_of(args.du), shared.ddelta = rows_of(args.ddelta), shared.dz = rows_of(args.dz);
        shared.ddelta_a = rows_of(args.ddelta_a);
        shared.coefficients[0] = varies(in.B) ? base_of(in.B) : nullptr;
        shared.coefficients[1] = varies(in.C) ? base_of(in.C) : nullptr;
    }
    // x + i y: unsigned, this is one instruction.
    __device__ __forceinline__ static char* along(char* x, int i, unsigned y) {
        return x + static_cast<unsigned long long>(static_cast<unsigned>(i)) * y;
    }
    // Of four elements: the host has seen to it that strides fit.
    __device__ __forceinline__ static char* address(const Rows& rows, const Unit& at, int first) {
        return along(along(global(rows.begin), at.channel, rows.of_channel), first + at.token, rows.of_token);
    }
    // What comes out of shared memory could be an address of any memory.
    __device__ __forceinline__ static char* global(char* address) {
        __builtin_assume(__isGlobal(address));
        return address;
    }
    __device__ __forceinline__ static i64 offset(const ChannelRows& x, const Unit& at, int first) {
        return at.channel * x.channel + (first + at.token) * x.token;
    }

    struct InFlight {
        Four u, delta, grad_out, z, delta_a;
    };
    template <int kCount>
    struct Floats {
        float u[kCount], delta[kCount], grad_out[kCount], z[kCount], delta_a[kCount];
    };
    __device__ __forceinline__ void load(InFlight& x, const Unit& at, int first) const {
        x.u.load(address(shared.u, at, first), args.io);
        x.delta.load(address(shared.delta, at, first), args.io);
        x.grad_out.load(address(shared.grad_out, at, first), args.io);
        if (in.z.data != nullptr) x.z.load(address(shared.z, at, first), args.io);
        if (in.delta_a.data != nullptr) x.delta_a.load(address(shared.delta_a, at, first), args.io);
    }
    template <DType kType>
    __device__ __forceinline__ static void convert(Floats<4>& x, const InFlight& raw) {
        raw.u.template to_floats<kType>(x.u);
        raw.delta.template to_floats<kType>(x.delta);
        raw.grad_out.template to_floats<kType>(x.grad_out);
        raw.z.template to_floats<kType>(x.z);
        raw.delta_a.template to_floats<kType>(x.delta_a);
    }
    __device__ __forceinline__ void load(Floats<1>& x, const Unit& at, int first) const {
        const auto one = [&](const Rows& rows, const ChannelRows& x) {
            return load_number({rows.begin, args.io}, offset(x, at, first));
        };
        x.u[0] = one(shared.u, in.u);
        x.delta[0] = one(shared.delta, in.delta);
        x.grad_out[0] = one(shared.grad_out, args.grad_out);
        if (in.z.data != nullptr) x.z[0] = one(shared.z, in.z);
        if (in.delta_a.data != nullptr) x.delta_a[0] = one(shared.delta_a, in.delta_a);
    }
    // Calls with the elements of each unit, while those of the next are in flight; or with each element, in a ragged tile.
    template <class F>
    __device__ __forceinline__ void for_elements(int first, int tokens, const F& call) const {
        if (args.rows_are_vectors && place.channels == kChannels && tokens == kStateChunk) {
            InFlight raw{};
            load(raw, unit(0), first);
#pragma unroll 1
            for (int i = 0; i < kUnits; ++i) {
                Floats<4> x;
                if (args.io == DType::bf16)
                    convert<DType::bf16>(x, raw);
                else if (args.io == DType::f32)
                    convert<DType::f32>(x, raw);
                else
                    convert<DType::f16>(x, raw);
                if (i + 1 < kUnits) load(raw, unit(i + 1), first);
                call(x, unit(i), true);
            }
            return;
        }
#pragma unroll 1
        for (int i = 0; i < 4 * kUnits; ++i) {
            Unit at = unit(i / 4);
            (args.along_tokens ? at.token : at.channel) += i % 4;
            const bool exists = at.channel < place.channels && at.token < tokens;
            Floats<1> x{};
            if (exists) load(x, at, first);
            call(x, at, exists);
        }
    }

    template <int kCount>
    __device__ __forceinline__ void make_elements(const Floats<kCount>& x, const Unit& unit, bool exists) {
        float bias[kCount], made[3][kCount], sizes[1][kCount];
        auto &input = made[0], &step = made[1], &cotangent = made[2];
        per_channel(bias, shared.bias, unit);
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            float size = x.delta[i] + bias[i];
            if (in.delta_softplus) size = softplus_fast(size);
            step[i] = in.delta_a.data != nullptr ? x.delta_a[i] : size, input[i] = x.u[i], cotangent[i] = x.grad_out[i];
            if constexpr (kTransition == Transition::exponential)
                if (args.input_times_delta) input[i] *= size;
            if constexpr (kTransition == Transition::s7) step[i] = -1.f / fmaf(size, size, 0.5f);
            if constexpr (kIsRglru) step[i] = size;
            if (in.z.data != nullptr) cotangent[i] *= silu_fast(x.z[i]);
            cotangent[i] *= static_cast<float>(kParts);  // y = 2 Re Σ C x of complex numbers
            sizes[0][i] = size;
            if (!exists) step[i] = input[i] = cotangent[i] = sizes[0][i] = 0.f;
        }
        put({shared.input, shared.step, shared.cotangent}, unit, made);
        if constexpr (has_size(kTransition)) put({shared.size}, unit, sizes);
    }
    // B and C: four real numbers at a time, along tokens or along states as they lie in memory, or one; zeros where they do not
    // exist.
    __device__ __forceinline__ void make_coefficients(int first, int tokens) {
        const bool full = args.coefficients_are_vectors && tokens == kStateChunk && in.state_size - args.first_state >= kGroup;
#pragma unroll 1
        for (int which = 0; which < 2; ++which) {
            const Coefficients& from = which == 0 ? in.B : in.C;
            if (!varies(from)) continue;
            auto* to = which == 0 ? shared.B : shared.C;
            const bool along_tokens = from.n != kParts;
            char* base = global(shared.coefficients[which]);
            if (full) {
                constexpr int kOfVector = 4 / kParts, kRow = kColumns / 4;
                const int shift = from.type == DType::f32 ? 2 : 1;
                const unsigned of_token = static_cast<unsigned>(from.token) << shift;
                const unsigned of_n = static_cast<unsigned>(from.n) << shift;
#pragma unroll 2
                for (int i = thread_again(); i < kStateChunk * kRow; i += Config::kThreads) {
                    const int token = along_tokens ? i / kGroup * kOfVector : i / kRow;
                    const int n = along_tokens ? i % kGroup : i % kRow * kOfVector;
                    Four raw;
                    raw.load(along(along(base, first + token, of_token), n, of_n), from.type);
                    float x[4];
                    raw.to_floats(from.type, x);
                    if (along_tokens) {
#pragma unroll
                        for (int j = 0; j < 4; ++j) to[token + j / kParts][n * kParts + j % kParts] = x[j];
                    } else {
                        *reinterpret_cast<float4*>(&to[token][n * kParts]) = {x[0], x[1], x[2], x[3]};
                    }
                }
                continue;
            }
#pragma unroll 1
            for (int i = thread_again(); i < kStateChunk * kColumns; i += Config::kThreads) {
                const int token = along_tokens ? i % kStateChunk : i / kColumns;
                const int column = along_tokens ? i / kStateChunk : i % kColumns, n = column / kParts;
                const bool exists = token < tokens && args.first_state + n < in.state_size;
                to[token][column] = exists ? load_number({base, from.type}, n * from.n + column % kParts * from.pair +
                                                                                (first + token) * from.token)
                                           : 0.f;
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
        } else if constexpr (kNumbers == 2) {
            const float2 part = *reinterpret_cast<const float2*>(from);
            x[0] = part.x, x[1] = part.y;
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
        } else if constexpr (kNumbers == 2) {
            *reinterpret_cast<float2*>(to) = {x[0], x[1]};
        } else {
#pragma unroll
            for (int i = 0; i < kNumbers; ++i) to[i] = x[i];
        }
    }
    __device__ __forceinline__ static void add_numbers(float* to, const Numbers& x) {
        Numbers sum;
        load_numbers(sum, to);
#pragma unroll
        for (int s = 0; s < kStates; ++s) sum[s] = sum[s] + x[s];
        store_numbers(to, sum);
    }
    // Rows of B or C in shared memory: of the tokens of the tile, or the same one for each. By index, as a pointer to one of
    // two arrays would be read as if to any memory.
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
    __device__ __forceinline__ void anchor(Own& own, int tokens) {
        const int channel = seat().channel;
        float total = 0.f;
#pragma unroll 1
        for (int token = 4 * (thread_again() % kLanes); token < kStateChunk; token += 4 * kLanes) {
            const float4 x = four(shared.step, channel, token);
            total += (x.x + x.y) + (x.z + x.w);
        }
        total = group_sum<kLanes>(total);
        bool any = false;
#pragma unroll
        for (int s = 0; s < kStates; ++s) any |= own.poles[s].rounds_alike(total, kStateChunk);
        if (!__any_sync(0xffffffffu, any)) return;
        float relative[kStates] = {};  // the product of the decays, minus 1, whose rounding is much finer
#pragma unroll 1
        for (int token = 0; token < tokens; ++token) {
            const float step = shared.step[channel][in_row(channel, token)];
#pragma unroll
            for (int s = 0; s < kStates; ++s) {
                const float decay = own.poles[s].step({step, 0.f, 0.f}, 0.f).decay;
                relative[s] = fmaf(relative[s], decay, decay - 1.f);
            }
        }
#pragma unroll
        for (int s = 0; s < kStates; ++s) {
            float exact;
            if (own.poles[s].long_memory(total, exact) && own.poles[s].rounds_alike(total, kStateChunk))
                own.carry[s] = fmaf(own.carry[s], __fdividef(exact - relative[s], 1.f + relative[s]), own.carry[s]);
        }
    }
    // Keeps the states before each sub-tile.
    __device__ __forceinline__ void walk_forward(Own& own, int subtiles) {
        const Seat at = seat();
        const TokenRows rows = rows_of(true, at);
        static_assert(kTokens == 2 * kHalf);
#pragma unroll 1
        for (int half = 0;; ++half) {
            if (half % 2 == 0) {
                store_numbers(&shared.checkpoint[half / 2][at.channel][at.number], own.x);
                if (half / 2 + 1 == subtiles) break;
            }
            Elements e;
            load_elements(e, at.channel, half * kHalf, false);
#pragma unroll
            for (int t = 0; t < kHalf; ++t) {
                Numbers B;
                load_row(B, rows, half * kHalf + t);
#pragma unroll
                for (int s = 0; s < kStates; ++s)
                    own.x[s] = after<Poles::kRelative>(own.x[s], own.poles[s].step(e.at(t), B[s]));
            }
        }
    }

    // Back through a sub-tile.
    __device__ __forceinline__ void walk_back(Own& own, int k, int tokens, bool any_varies) {
        Numbers x[kTokens + 1], decay[kTokens], dpole;
        const Seat here = seat();
        load_numbers(x[0], &shared.checkpoint[k][here.channel][here.number]);
#pragma unroll
        for (int half = 0; half < kTokens; half += kHalf) {
            const TokenRows rows_B = rows_of(true, here);
            Elements e;
            load_elements(e, here.channel, k * kTokens + half, false);
#pragma unroll
            for (int t = 0; t < kHalf; ++t) {
                Numbers B;
                load_row(B, rows_B, k * kTokens + half + t);
#pragma unroll
                for (int s = 0; s < kStates; ++s) {
                    const Step<Number> step = own.poles[s].step(e.at(t), B[s]);
                    decay[half + t][s] = step.decay;
                    x[half + t + 1][s] = after<Poles::kRelative>(x[half + t][s], step);
                }
            }
        }
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
                        own.carry[s] = Gradient::add(own.poles[s], e.at(t), B[s], decay[half + t][s], before, dx,
                                                     args.most_root_gradient, slopes, dpole[s], dB[s]);
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
            store_sums(&shared.input[channel][in_row(channel, first)], of_input, at.thread);
            store_sums(&shared.cotangent[channel][in_row(channel, first)], of_step, at.thread);
            if constexpr (has_size(kTransition)) store_sums(&shared.size[channel][in_row(channel, first)], of_size, at.thread);
            if (in.z.data != nullptr) store_sums(&shared.checkpoint[k][channel][half], y, at.thread);
            if (any_varies) sum_channels(k, half, at.thread);
        }
#pragma unroll
        for (int s = 0; s < kStates; ++s) own.dpole[s] = own.dpole[s] + dpole[s];
    }
    __device__ __forceinline__ static float conjugate(float x) { return x; }
    __device__ __forceinline__ static ComplexNumber<float> conjugate(ComplexNumber<float> x) { return x.conjugate(); }

    // Sums over the states of a channel, of four tokens, to where its lanes have read.
    __device__ __forceinline__ void store_sums(float* to, float (&x)[kHalf], int thread) const {
        static_assert(kLanes >= kHalf);
        const int token = sum_over_lanes<kLanes, 1, kHalf>(x, thread);
        __syncwarp();                                          // all lanes have read
        if (thread % (kLanes / kHalf) == 0) to[token] = x[0];  // others have the same sum
    }
    __device__ __forceinline__ static int buffer_of(int k) { return kConfig.buffers() == 1 ? 0 : k % 2; }
    // The gradients of B and C of four tokens, over the channels of the warp.
    __device__ __forceinline__ void sum_channels(int k, int half, int thread) {
        const int lane = thread % 32, warp = thread / 32;
        constexpr int kOver = kConfig.channels_per_warp(), kOfOne = kHalf * kColumns, kAll = 2 * kOfOne;
        constexpr int kVector = kAll < 128 ? 1 : 4;
        static_assert(kAll % (32 * kVector) == 0);
        const auto* from = &shared.exchange[warp * kOver];
        auto& to = shared.sums[buffer_of(k)][warp];
        __syncwarp();
#pragma unroll
        for (int i = 0; i < kAll; i += 32 * kVector) {
            const int at = i + lane * kVector, which = at / kOfOne;
            float sum[kVector] = {};
#pragma unroll
            for (int c = 0; c < kOver; ++c) {
                if constexpr (kVector == 4) {
                    const float4 x = *reinterpret_cast<const float4*>(&from[c][at]);
                    sum[0] += x.x, sum[1] += x.y, sum[2] += x.z, sum[3] += x.w;
                } else {
                    sum[0] += from[c][at];
                }
            }
            float* into = &to[which][half][0] + at % kOfOne;
            if constexpr (kVector == 4)
                *reinterpret_cast<float4*>(into) = {sum[0], sum[1], sum[2], sum[3]};
            else
                *into = sum[0];
        }
        __syncwarp();  // all lanes have read
    }
    // Where the sums of the block begin.
    __device__ __forceinline__ float* partial_of(bool is_B) const {
        const Coefficients& of = is_B ? in.B : in.C;
        const int partials = is_B ? args.partials_B : args.partials_C;
        const int block = static_cast<int>(blockIdx.x), group = block / partials, partial = block - group * partials;
        const i64 row = (static_cast<i64>(partial) * args.rows + (place.batch - args.first_row)) * of.groups + group;
        return (is_B ? args.dB : args.dC) + (row * in.length + place.start) * kColumns;
    }
    // Of all warps, to memory: a thread writes neighbouring sums of B or of C.
    __device__ __forceinline__ void write_sums(int k, int token, int tokens) const {
        constexpr int kOfOne = kTokens * kColumns,
                      kVector = 2 * kOfOne / Config::kThreads < 1 ? 1 : 2 * kOfOne / Config::kThreads;
        static_assert(kVector == 1 || kVector == 2 || kVector == 4);
        const int at = thread_again() * kVector, which = at / kOfOne, inside = at % kOfOne;
        if (at >= 2 * kOfOne || inside >= tokens * kColumns) return;
        float* to = shared.partial[which];
        if (to == nullptr) return;  // constant
        to += static_cast<i64>(token) * kColumns + inside;
        float sum[kVector] = {};
        if (!kIsRglru || which == 1)
#pragma unroll
            for (int w = 0; w < Config::kWarps; ++w) {
                const float* from = &shared.sums[buffer_of(k)][w][which][0][0] + inside;
#pragma unroll
                for (int i = 0; i < kVector; ++i) sum[i] += from[i];
            }
        if constexpr (kVector == 4)
            *reinterpret_cast<float4*>(to) = {sum[0], sum[1], sum[2], sum[3]};
        else if constexpr (kVector == 2)
            *reinterpret_cast<float2*>(to) = {sum[0], sum[1]};
        else
            *to = sum[0];
    }

    // Tokens of the sequence from the first of a chunk on. Read where it is used: in a register it would take one from the
    // walk.
    __device__ __forceinline__ int left(int chunk) const { return place.length - chunk * kStateChunk; }
    __device__ __forceinline__ void walk(Own& own, int chunk) {
        const int tokens = min(kStateChunk, left(chunk)), subtiles = (tokens + kTokens - 1) / kTokens;
        if constexpr (!Poles::kRelative) anchor(own, tokens);
        walk_forward(own, subtiles);
        const bool any_varies = varies(in.B) || varies(in.C);
#pragma unroll 1
        for (int k = subtiles - 1; k >= 0; --k) {
            walk_back(own, k, kTransition == Transition::exponential ? 0 : left(chunk), any_varies);
            if (!any_varies) continue;
            __syncthreads();
            write_sums(k, chunk * kStateChunk + k * kTokens, left(chunk) - k * kTokens);
            if constexpr (kConfig.buffers() == 1) __syncthreads();
        }
    }

    // ---- The gradients of the elements

    // Sums over the states of earlier passes are added to those of the tile, which before the last pass are kept.
    __device__ __forceinline__ void add_earlier(int first, int tokens) {
        const i64 apart = static_cast<i64>(in.batch) * in.dim * in.length;
#pragma unroll 1
        for (int i = thread_again(); i < kChannels * kStateChunk; i += Config::kThreads) {
            const int channel = i / kStateChunk, token = i % kStateChunk, at = in_row(channel, token);
            if (channel >= place.channels || token >= tokens) continue;
            float* earlier = args.earlier + (static_cast<i64>(place.batch) * in.dim + place.channel + channel) * in.length +
                             place.start + first + token;
            const auto add = [&](float& sum) {
                if (!args.first_pass) sum += *earlier;
                if (!args.last_pass) *earlier = sum;
                earlier += apart;
            };
            add(shared.input[channel][at]);
            add(shared.cotangent[channel][at]);
            if (in.z.data != nullptr) add(shared.checkpoint[token / kTokens][channel][token % kTokens]);
            if constexpr (has_size(kTransition)) add(shared.size[channel][at]);
        }
    }
    template <int kCount>
    struct Outputs {
        float du[kCount], ddelta[kCount], dz[kCount], ddelta_a[kCount];
    };
    template <DType kType>
    __device__ __forceinline__ void store(const Outputs<4>& x, const Unit& at, int first) const {
        Four::store<kType>(address(shared.du, at, first), x.du);
        Four::store<kType>(address(shared.ddelta, at, first), x.ddelta);
        if (in.z.data != nullptr) Four::store<kType>(address(shared.dz, at, first), x.dz);
        if (in.delta_a.data != nullptr) Four::store<kType>(address(shared.ddelta_a, at, first), x.ddelta_a);
    }
    __device__ __forceinline__ void store(const Outputs<4>& x, const Unit& at, int first, bool) const {
        if (args.io == DType::bf16)
            store<DType::bf16>(x, at, first);
        else if (args.io == DType::f32)
            store<DType::f32>(x, at, first);
        else
            store<DType::f16>(x, at, first);
    }
    __device__ __forceinline__ void store(const Outputs<1>& x, const Unit& at, int first, bool exists) const {
        if (!exists) return;
        const auto one = [&](const Rows& rows, const ChannelRows& to, float y) {
            store_element(global(rows.begin), args.io, offset(to, at, first), y);
        };
        one(shared.du, args.du, x.du[0]);
        one(shared.ddelta, args.ddelta, x.ddelta[0]);
        if (in.z.data != nullptr) one(shared.dz, args.dz, x.dz[0]);
        if (in.delta_a.data != nullptr) one(shared.ddelta_a, args.ddelta_a, x.ddelta_a[0]);
    }
    template <int kCount>
    __device__ __forceinline__ void finish_elements(const Floats<kCount>& x, const Unit& unit, int first, bool exists) {
        const bool has_z = in.z.data != nullptr, has_delta_a = in.delta_a.data != nullptr;
        float made[3][kCount], of_size[1][kCount] = {}, bias[kCount], D[kCount], of_D_and_bias[2][kCount];
        get(made, {shared.input, shared.cotangent, shared.step}, unit);
        auto &of_input = made[0], &of_step = made[1], &step = made[2];
        if constexpr (has_size(kTransition)) get(of_size, {shared.size}, unit);
        Outputs<kCount> to{};
        per_channel(bias, shared.bias, unit);
        per_channel(D, shared.D, unit);
        const float* y = &shared.checkpoint[unit.token / kTokens][unit.channel][unit.token % kTokens];
        const int y_apart = args.along_tokens ? 1 : Shared::kCheckpoint;
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            const float before_softplus = x.delta[i] + bias[i];
            of_step[i] *= Gradient::kStepUnit;
            float d_size = of_size[0][i];
            to.du[i] = of_input[i];
            if constexpr (kTransition == Transition::exponential) {
                if (args.input_times_delta) {
                    float size = step[i];
                    if (has_delta_a) size = in.delta_softplus ? softplus_fast(before_softplus) : before_softplus;
                    d_size = x.u[i] * of_input[i];
                    to.du[i] = size * of_input[i];
                }
            }
            if constexpr (kTransition == Transition::s7) {
                const float size = in.delta_softplus ? softplus_fast(before_softplus) : before_softplus;
                d_size = 2.f * size * step[i] * step[i] * of_step[i];
            } else if constexpr (kIsRglru) {
                d_size = of_step[i];
            } else {
                if (!has_delta_a) d_size += of_step[i];
            }
            if (in.delta_softplus && before_softplus <= 20.f) d_size *= sigmoid_fast(before_softplus);
            float cotangent = x.grad_out[i];
            if (has_z) {
                const float gate = sigmoid_fast(x.z[i]);
                const float out = fmaf(D[i], x.u[i], y[i * y_apart] * static_cast<float>(kParts));
                to.dz[i] = x.grad_out[i] * out * gate * fmaf(x.z[i], 1.f - gate, 1.f);
                cotangent *= x.z[i] * gate;
            }
            to.du[i] = fmaf(D[i], cotangent, to.du[i]);
            to.ddelta[i] = d_size;
            if constexpr (kTransition != Transition::s7 && !kIsRglru) to.ddelta_a[i] = of_step[i];
            of_D_and_bias[0][i] = exists ? cotangent * x.u[i] : 0.f;
            of_D_and_bias[1][i] = exists ? d_size : 0.f;
        }
        store(to, unit, first, exists);
        put({shared.input, shared.cotangent}, unit, of_D_and_bias);  // for sum_elements
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
        Own own;
        begin(own);
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
        if (threadIdx.x == 0) keep_rows();
        __syncthreads();

#pragma unroll 1
        for (int chunk = (place.length + kStateChunk - 1) / kStateChunk - 1; chunk >= 0; --chunk) {
            const int first = chunk * kStateChunk;
            int tokens = min(kStateChunk, left(chunk));
            load_states(own, place.first_chunk + chunk);
            for_elements(first, tokens, [&](const auto& x, const Unit& unit, bool exists) { make_elements(x, unit, exists); });
            make_coefficients(first, tokens);
            __syncthreads();
            walk(own, chunk);
            __syncthreads();
            tokens = min(kStateChunk, left(chunk));
            if (!args.first_pass || !args.last_pass) {
                add_earlier(first, tokens);
                __syncthreads();
            }
            if (!args.last_pass) continue;
            for_elements(first, tokens,
                         [&](const auto& x, const Unit& unit, bool exists) { finish_elements(x, unit, first, exists); });
            __syncthreads();
            if (args.dD != nullptr || args.ddelta_bias != nullptr) {
                const int thread = thread_again();
                if (thread < 2 * kChannels) sum_elements(thread / kChannels, thread % kChannels);
                __syncthreads();
            }
        }
        finish(own);
        if (args.last_pass && threadIdx.x < 2 * kChannels) {
            const int which = threadIdx.x / kChannels, channel = threadIdx.x % kChannels;
            float* to = which == 0 ? args.dD : args.ddelta_bias;
            if (to != nullptr && channel < place.channels)
                to[row_of_piece() * in.dim + place.channel + channel] = shared.element_sums[which][channel];
        }
    }
};

#ifdef __CUDA_ARCH__
inline constexpr int kArchitecture = __CUDA_ARCH__ / 10;
#else
inline constexpr int kArchitecture = 90;
#endif
// Registers are limited for so many blocks, where shared memory has room for them.
template <SelectiveBackwardConfig kConfig>
inline constexpr int kBlocksPerMultiprocessor = [] {
    constexpr int kKilobytes = kArchitecture >= 90 && kArchitecture < 120 ? 228 : kArchitecture == 80 ? 164 : 100;
    constexpr int kFit = kKilobytes * 1024 / static_cast<int>(sizeof(SelectiveBackwardSharedPlan<kConfig>) + 1024);
    return kFit < kConfig.most_blocks() ? kFit : kConfig.most_blocks();
}();

template <SelectiveBackwardConfig kConfig>
__global__ void __launch_bounds__(SelectiveBackwardConfig::kThreads, kBlocksPerMultiprocessor<kConfig>)
    selective_backward(const __grid_constant__ SelectiveBackwardArgs args) {
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<SelectiveBackwardSharedPlan<kConfig>*>(memory);
    static_assert(sizeof(shared) <= kSharedBytesEverywhere);
    const SelectiveInputs& in = args.in;
    const bool packed = in.cu_seqlens.data != nullptr;
    const int sequence = args.first_sequence + blockIdx.y;
    const int blocks_of_span = static_cast<int>(ceil_div(args.channels_per_span, kConfig.channels_per_block()));
    const int inside = blockIdx.x % blocks_of_span * kConfig.channels_per_block();
    const Span whole = span_of(in.cu_seqlens, sequence, in.length);
    const int piece = blockIdx.z;
    const Span span = span_of_piece(args.pieces, whole, piece);
    BackwardPlace place{.channel = static_cast<int>(blockIdx.x) / blocks_of_span * args.channels_per_span + inside,
                        .channels = min(args.channels_per_span - inside, kConfig.channels_per_block()),
                        .sequence = sequence,
                        .batch = packed ? 0 : sequence,
                        .piece = piece,
                        .length = span.length,
                        .start = span.start,
                        .first_chunk = 0};
    if (packed) {
#pragma unroll 1
        for (int i = 0; i < sequence; ++i)
            place.first_chunk += ceil_div(span_of(in.cu_seqlens, i, in.length).length, kStateChunk);
    } else {
        place.first_chunk = sequence * ceil_div(in.length, kStateChunk);
    }
    place.first_chunk += (span.start - whole.start) / kStateChunk;
    if (threadIdx.x == 0) shared.place = place;
    __syncthreads();
    SelectiveBackward<kConfig>{args, in, shared, shared.place}.run();
}

}  // namespace gdn_cuda::scan
