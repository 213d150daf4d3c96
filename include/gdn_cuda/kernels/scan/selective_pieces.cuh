// scan/selective_pieces: what the pieces of sequences do to a state before them, before scan/selective_forward, and in
// reverse to the gradient of a state behind them, before scan/selective_backward, where several blocks share a sequence:
//     x_t = Ā_t x_{t−1} + (B̄u)_t          from 0 on, and the product of all Ā_t
//     e_t = conj(Ā_t) (e_{t+1} + conj(C_t) g_t)  from 0 on, and the product of all conj(Ā_t)
//
// A block of 128 threads has 16 or 32 channels of a piece, and a group of their states. It walks the tokens tile by tile as
// selective_forward does: each thread prepares eight elements in shared memory, then a channel's states are on a few lanes, some
// on each. The elements of the next tile are in flight meanwhile. The piece that is walked last has nothing to write, and no
// block.
//
// A product over many tokens is no product of rounded decays, which near one are all rounded alike: it follows from the sum of
// the steps, and where it cannot, it is kept as its difference from 1 too. Likewise the decay of the states over a tile, which
// are walked from 0 in each.
//
// Elements that are not whole aligned vectors of a whole tile take a slower path, one at a time.
//
// Bound: the special function unit, an exponential a state and token.
#pragma once

#include <gdn_cuda/kernels/common/vector.cuh>
#include <gdn_cuda/kernels/scan/discretization_gradients.cuh>
#include <gdn_cuda/kernels/scan/eight.cuh>
#include <gdn_cuda/kernels/scan/selective_piece.cuh>
#include <gdn_cuda/kernels/scan/selective_pieces_plan.cuh>
#include <gdn_cuda/kernels/scan/selective_tile.cuh>

namespace gdn_cuda::scan {

// A sum and what its rounding left.
struct ExactSum {
    float sum = 0.f, rest = 0.f;

    __device__ __forceinline__ void add(float x) {
        const float next = sum + x, added = next - sum;
        rest += (sum - (next - added)) + (x - added);
        sum = next;
    }
    __device__ __forceinline__ void add(const ExactSum& x) {
        add(x.sum);
        rest += x.rest;
    }
};

// The product of factors 1 + x, and the product minus 1, which is exact where the product is near one.
template <class Number>
struct FactorProduct {
    Number whole = one_of(Number{}), relative = {};

    __device__ __forceinline__ void times(Number x) {
        whole = plus_product(whole, whole, x);
        relative = relative + plus_product(x, relative, x);
    }
    __device__ __forceinline__ void times(const FactorProduct& x) {
        whole = whole * x.whole;
        relative = relative + plus_product(x.relative, relative, x.relative);
    }
    __device__ __forceinline__ Number product() const {
        return squared_size(relative) < 0.25f ? one_of(Number{}) + relative : whole;
    }
};

template <SelectivePiecesConfig kConfig>
struct SelectivePieces {
    using Config = SelectivePiecesConfig;
    using Shared = SelectivePiecesSharedPlan<kConfig>;
    static constexpr int kChannels = kConfig.channels(), kTokens = kConfig.tokens(), kStates = kConfig.states;
    static constexpr int kLanes = kConfig.lanes, kGroup = kConfig.group(), kParts = kConfig.parts();
    static constexpr int kVectors = Shared::kVectors;  // of B or C, a thread
    static constexpr Transition kTransition = kConfig.transition;
    using Own = Neighbours<kChannels, kTokens>;
    using Number = scan::Number<kConfig.is_complex>;
    using Poles = Pole<kTransition, kConfig.is_complex>;
    using Gradient = PoleGradient<kTransition, kConfig.is_complex>;
    using Vector = Eight<false>;
    // What the product of decays follows from.
    static constexpr bool kBySteps = kTransition != Transition::bilinear && kTransition != Transition::s7;

    const SelectivePiecesArgs& args;
    const SelectiveInputs& in;
    Shared& shared;
    SelectivePlace place;
    int piece, first;                  // the first of the states
    Own own;                           // of a tile
    int lane, channel;                 // of the states
    int full_rows, full_coefficients;  // ends of the tiles that are whole and of aligned vectors
    char* addresses[3 + kVectors];     // of the first tile
    enum InFlight { delta, source, gate, first_coefficient };

    __device__ __forceinline__ Vector& in_flight(int i) const {
        return reinterpret_cast<Vector&>(shared.in_flight[i][threadIdx.x]);
    }

    // ---- Elements

    enum Rows { kStep, kInput, kSize };
    __device__ __forceinline__ float* row(int rows, int channel) const { return &shared.rows[rows][channel * Shared::kPitch]; }

    __device__ __forceinline__ i64 offset_of(const ChannelRows& x, int tile, int i) const {
        return place.batch * x.batch + (place.channel + own.channel_of(i)) * x.channel +
               (place.span.start + tile + own.token_of(i)) * x.token;
    }
    __device__ __forceinline__ bool exists(int tile, int i) const {
        return own.channel_of(i) < place.channels && tile + own.token_of(i) < place.span.length;
    }
    __device__ __forceinline__ char* address(const ChannelRows& x, int tile) const {
        return static_cast<char*>(x.data) + (offset_of(x, tile, 0) << (Vector::is_wide(args.io) ? 2 : 1));
    }
    // From the address of the first tile; the host has seen to it that a token's stride fits.
    __device__ __forceinline__ char* in_tile(char* first_tile, const ChannelRows& x, int tile) const {
        return first_tile + static_cast<i64>(tile) * (static_cast<int>(x.token) << (Vector::is_wide(args.io) ? 2 : 1));
    }
    __device__ __forceinline__ float load_one(const ChannelRows& x, int tile, int i) const {
        return x.data != nullptr ? load_number({x.data, args.io}, offset_of(x, tile, i)) : 0.f;
    }

    // What the recurrence needs of an element.
    __device__ __forceinline__ ChannelStep prepared(float from, float of_gate, float size, float of_delta_a) const {
        if (in.delta_softplus) size = softplus_fast(size);
        ChannelStep x{size, from, size};
        if (args.reverse) {
            x.input *= static_cast<float>(kParts);  // y = 2 Re Σ C x of complex numbers
            if (args.gate.data != nullptr) x.input *= silu_fast(of_gate);
        } else if (kTransition == Transition::exponential && args.input_times_delta) {
            x.input *= size;
        }
        if constexpr (kTransition == Transition::s7)
            x.step = -1.f / fmaf(size, size, 0.5f);
        else if (kTransition != Transition::rglru && in.delta_a.data != nullptr)
            x.step = of_delta_a;
        return x;
    }
    __device__ __forceinline__ void prepare(int tile) const {
        if (tile < full_rows) {
            float of_source[8], of_gate[8] = {}, of_delta[8], of_delta_a[8] = {}, step[8], input[8], size[8];
            in_flight(delta).to_floats(args.io, of_delta);
            in_flight(source).to_floats(args.io, of_source);
            if (args.gate.data != nullptr) in_flight(gate).to_floats(args.io, of_gate);
            if (in.delta_a.data != nullptr) {  // rare, so not in flight before
                Vector raw;
                raw.load(address(in.delta_a, tile), args.io);
                raw.to_floats(args.io, of_delta_a);
            }
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const ChannelStep x =
                    prepared(of_source[i], of_gate[i], of_delta[i] + shared.bias[own.channel_of(i)], of_delta_a[i]);
                step[i] = x.step, input[i] = x.input, size[i] = x.size;
            }
            put(kStep, step);
            put(kInput, input);
            if constexpr (has_size(kTransition)) put(kSize, size);
            return;
        }
#pragma unroll 1
        for (int i = 0; i < 8; ++i) {
            const int c = own.channel_of(i), token = swizzled<kChannels>(c, own.token_of(i));
            ChannelStep x{};  // leaves the states as they are
            if (exists(tile, i))
                x = prepared(load_one(args.source, tile, i), load_one(args.gate, tile, i),
                             load_one(in.delta, tile, i) + shared.bias[c], load_one(in.delta_a, tile, i));
            row(kStep, c)[token] = x.step;
            row(kInput, c)[token] = x.input;
            if constexpr (has_size(kTransition)) row(kSize, c)[token] = x.size;
        }
    }
    __device__ __forceinline__ void put(int rows, const float (&x)[8]) const {
        float* to = row(rows, own.channel) + swizzled<kChannels>(own.channel, own.token);
        if (own.along_tokens) {
            reinterpret_cast<float4*>(to)[0] = {x[0], x[1], x[2], x[3]};
            reinterpret_cast<float4*>(to)[1] = {x[4], x[5], x[6], x[7]};
        } else {
#pragma unroll
            for (int i = 0; i < 8; ++i) to[i * Shared::kPitch] = x[i];
        }
    }

    // ---- B or C of a tile: eight real numbers a vector, along tokens or along states

    struct CoefficientPlace {
        int n, token;
        bool along_tokens, exists;

        __device__ __forceinline__ int n_of(int i) const { return along_tokens ? n : n + i / kParts; }
        __device__ __forceinline__ int token_of(int i) const { return along_tokens ? token + i / kParts : token; }
    };
    __device__ __forceinline__ CoefficientPlace coefficient_place(int i) const {
        constexpr int kAlongTokens = kTokens * kParts / 8, kAlongStates = kGroup * kParts / 8;
        const int vector = threadIdx.x + i * Config::kThreads;
        const bool along_tokens = args.coefficients.n != kParts;
        const int n = along_tokens ? vector / kAlongTokens : vector % kAlongStates * (8 / kParts);
        const int token = along_tokens ? vector % kAlongTokens * (8 / kParts) : vector / kAlongStates;
        return {n, token, along_tokens, vector < Shared::kNumbers / 8};
    }
    __device__ __forceinline__ float& coefficient(const CoefficientPlace& at, int i) const {
        return shared.coefficients[at.n_of(i)][at.token_of(i) * kParts + i % kParts];
    }
    __device__ __forceinline__ i64 coefficient_offset(const CoefficientPlace& at, int tile, int i) const {
        const Coefficients& from = args.coefficients;
        return place.batch * from.batch + place.channel / (in.dim / from.groups) * from.group + (first + at.n_of(i)) * from.n +
               (place.span.start + tile + at.token_of(i)) * from.token + i % kParts * from.pair;
    }
    __device__ __forceinline__ bool coefficients_are_full(int tile) const {
        return tile < full_coefficients && first + kGroup <= in.state_size;
    }
    __device__ __forceinline__ void put_coefficients(int tile) const {
        if (!args.coefficients.varies) return;  // ones
        const DType type = args.coefficients.type;
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            const CoefficientPlace at = coefficient_place(i);
            if (!at.exists) continue;
            if (coefficients_are_full(tile)) {
                float x[8];
                in_flight(first_coefficient + i).to_floats(type, x);
                if (at.along_tokens) {
                    auto* to = reinterpret_cast<float4*>(&coefficient(at, 0));
                    to[0] = {x[0], x[1], x[2], x[3]};
                    to[1] = {x[4], x[5], x[6], x[7]};
                } else {
#pragma unroll
                    for (int j = 0; j < 8; ++j) coefficient(at, j) = x[j];
                }
            } else {
#pragma unroll 1
                for (int j = 0; j < 8; ++j) {
                    const bool exists = first + at.n_of(j) < in.state_size && tile + at.token_of(j) < place.span.length;
                    coefficient(at, j) =
                        exists ? load_number({args.coefficients.data, type}, coefficient_offset(at, tile, j)) : 0.f;
                }
            }
        }
    }

    // What the tile needs from memory.
    __device__ __forceinline__ void load(int tile) const {
        if (tile < full_rows) {
            Vector::fetch(in_flight(delta), in_tile(addresses[delta], in.delta, tile), args.io);
            Vector::fetch(in_flight(source), in_tile(addresses[source], args.source, tile), args.io);
            if (args.gate.data != nullptr)
                Vector::fetch(in_flight(gate), in_tile(addresses[gate], args.gate, tile), args.io);
        }
        if (!coefficients_are_full(tile)) return;
        const Coefficients& from = args.coefficients;
        const int of_token = static_cast<int>(from.token) << (Vector::is_wide(from.type) ? 2 : 1);
#pragma unroll
        for (int i = 0; i < kVectors; ++i)
            if (coefficient_place(i).exists)
                Vector::fetch(in_flight(first_coefficient + i),
                              addresses[first_coefficient + i] + static_cast<i64>(tile) * of_token, from.type);
    }

    // ---- The states of a lane

    struct States {
        Poles poles[kStates];
        Number x[kStates];
        ExactSum steps;
        FactorProduct<Number> factors[kTransition == Transition::bilinear ? kStates : 1];  // of s7, for all states
    };

    // Neighbouring states are on neighbouring lanes. Calls with the index of each that exists, and with its index in N.
    template <class F>
    __device__ __forceinline__ void each_state(const F& call) const {
#pragma unroll
        for (int s = 0; s < kStates; ++s) {
            const int n = first + s * kLanes + lane;
            if (channel < place.channels && n < in.state_size) call(s, n);
        }
    }
    __device__ __forceinline__ Number constant(const Coefficients& from, int n) const {
        const float* at = static_cast<const float*>(from.data) + (place.channel + channel) * from.group + n * from.n;
        if constexpr (kConfig.is_complex)
            return {at[0], at[from.pair]};
        else
            return *at;
    }
    __device__ __forceinline__ static float conjugate(float x) { return x; }
    __device__ __forceinline__ static ComplexNumber<float> conjugate(ComplexNumber<float> x) { return x.conjugate(); }

    // Ā of steps that sum to `steps`.
    __device__ __forceinline__ static Number decay_over(const Poles& pole, const ExactSum& steps) {
        if constexpr (kConfig.is_complex) {
            // As in Pole::expm1, but of any number of turns.
            const float turns = steps.sum * pole.turns, power = steps.sum * pole.A.re;
            const float error = fmaf(steps.sum, pole.rest, fmaf(steps.sum, pole.turns, -turns)) + steps.rest * pole.turns;
            const float size = fabsf(power) < 0.5f ? 1.f + expm1_small(power) : exp2_fast(power * kLog2e);
            return unit_at(2.f * (turns - rintf(turns) + error)) * size;
        } else {
            float relative;
            if (pole.long_memory(steps.sum, relative)) return 1.f + relative;
            return pole.step({steps.sum, 0.f, 0.f}, 0.f).decay;
        }
    }
    __device__ __forceinline__ Number product(const States& states, int s) const {
        if constexpr (kBySteps) return decay_over(states.poles[s], states.steps);
        return states.factors[kTransition == Transition::bilinear ? s : 0].product();
    }
    // B or C where it is constant, and what else the output of rglru has as a factor.
    __device__ __forceinline__ Number drive(int n) const {
        Number x = one_of(Number{});
        if (args.coefficients.data != nullptr && !args.coefficients.varies) x = constant(args.coefficients, n);
        if (kTransition == Transition::rglru && args.reverse && !in.B.varies) x = x * constant(in.B, n);
        return args.reverse ? conjugate(x) : x;
    }
    __device__ __forceinline__ void store(const States& states) const {
        const i64 row = (static_cast<i64>(piece) * in.sequences + place.sequence) * in.dim + place.channel + channel;
        each_state([&](int s, int n) {
            const i64 at = row * in.state_size + n;
            const Number decayed = product(states, s);
            static_cast<Number*>(args.maps.ends)[at] = states.x[s] * drive(n);
            static_cast<Number*>(args.maps.products)[at] = args.reverse ? conjugate(decayed) : decayed;
        });
    }

    // ---- The recurrence

    template <int kCount>
    __device__ __forceinline__ static Number number(const float (&x)[kCount], int i) {
        if constexpr (kConfig.is_complex)
            return Number{x[2 * i], x[2 * i + 1]};
        else
            return x[i];
    }

    // Adds the tile's steps to those before, or for s7 its decays. Each lane takes eight, which makes a tile.
    __device__ __forceinline__ ExactSum add_steps(States& states) const {
        static_assert(kLanes * 8 == kTokens);
        if constexpr (kTransition == Transition::bilinear) return {};
        float step[8];
        load_shared(step, row(kStep, channel) + swizzled<kChannels>(channel, lane * 8));
        const auto of = [](float x, int distance) { return __shfl_xor_sync(0xffffffffu, x, distance); };
        if constexpr (kTransition == Transition::s7) {
            FactorProduct<float> tile;
#pragma unroll
            for (float x : step) tile.times(x);
#pragma unroll
            for (int distance = kLanes / 2; distance > 0; distance /= 2)
                tile.times(FactorProduct<float>{of(tile.whole, distance), of(tile.relative, distance)});
            states.factors[0].times(tile);
            return {};
        }
        ExactSum tile;
#pragma unroll
        for (float x : step)
            if constexpr (kConfig.is_complex)
                tile.add(x);
            else
                tile.sum += x;
#pragma unroll
        for (int distance = kLanes / 2; distance > 0; distance /= 2)
            tile.add(ExactSum{of(tile.sum, distance), of(tile.rest, distance)});
        states.steps.add(tile);
        return tile;
    }
    // Takes the states through a tile whose steps sum to `total`.
    template <bool kReverse>
    __device__ __forceinline__ void walk(States& states, const ExactSum& total) const {
        Number x[kStates];
#pragma unroll
        for (int s = 0; s < kStates; ++s) x[s] = kBySteps ? Number{} : states.x[s];
#pragma unroll 1
        for (int i = 0; i < kTokens; i += 4) {
            const int four = kReverse ? kTokens - 4 - i : i;
            const int at = swizzled<kChannels>(channel, four);  // tokens are exchanged by eights
            float step[4], input[4], size[4] = {};
            load_shared(step, row(kStep, channel) + at);
            load_shared(input, row(kInput, channel) + at);
            if constexpr (has_size(kTransition) && !kReverse) load_shared(size, row(kSize, channel) + at);
#pragma unroll
            for (int s = 0; s < kStates; ++s) {
                float coefficients[4 * kParts];
                load_shared(coefficients, &shared.coefficients[s * kLanes + lane][four * kParts]);
                const Poles& pole = states.poles[s];
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const int t = kReverse ? 3 - j : j;
                    const Step<Number> next = pole.step({step[t], input[t], size[t]}, number(coefficients, t));
                    if constexpr (kReverse)
                        x[s] = Gradient::carried(pole, {step[t], 0.f, 0.f},
                                                 plus_scaled(x[s], conjugate(number(coefficients, t)), input[t]), next.decay);
                    else
                        x[s] = after<Poles::kRelative>(x[s], next);
                    if constexpr (kTransition == Transition::bilinear) states.factors[s].times(next.decay);
                }
            }
        }
#pragma unroll
        for (int s = 0; s < kStates; ++s) {
            float relative;
            if constexpr (!kBySteps)
                states.x[s] = x[s];
            else if constexpr (kConfig.is_complex)
                states.x[s] = through_piece(states.x[s], decay_over(states.poles[s], total), x[s]);
            else if (states.poles[s].long_memory(total.sum, relative))
                states.x[s] = states.x[s] + fmaf(relative, states.x[s], x[s]);
            else
                states.x[s] = through_piece(states.x[s], decay_over(states.poles[s], total), x[s]);
        }
    }

    __device__ __forceinline__ void begin() {
        const int whole = place.span.length / kTokens * kTokens;
        full_rows = args.rows_are_vectors && place.channels == kChannels ? whole : 0;
        full_coefficients = args.coefficients_are_vectors ? whole : 0;
        addresses[delta] = address(in.delta, 0);
        addresses[source] = address(args.source, 0), addresses[gate] = address(args.gate, 0);
        if (args.coefficients.varies) {
#pragma unroll
            for (int i = 0; i < kVectors; ++i)
                addresses[first_coefficient + i] =
                    static_cast<char*>(args.coefficients.data) +
                    (coefficient_offset(coefficient_place(i), 0, 0) << (Vector::is_wide(args.coefficients.type) ? 2 : 1));
        } else {
            float* to = &shared.coefficients[0][0];
            for (int i = threadIdx.x; i < static_cast<int>(sizeof(shared.coefficients) / sizeof(float)); i += Config::kThreads)
                to[i] = i % kParts == 0 ? 1.f : 0.f;
        }
        if (threadIdx.x < kChannels) {
            const int c = threadIdx.x;
            shared.bias[c] = c < place.channels && in.delta_bias != nullptr ? in.delta_bias[place.channel + c] : 0.f;
        }
        __syncthreads();
    }
    __device__ __forceinline__ void run() {
        begin();
        States states{};
#pragma unroll
        for (Poles& pole : states.poles) pole = Poles::of(Number{});
        each_state([&](int s, int n) { states.poles[s] = Poles::of(constant(in.A, n)); });
        const int tiles = (place.span.length + kTokens - 1) / kTokens;
        const auto tile = [&](int i) { return (args.reverse ? tiles - 1 - i : i) * kTokens; };
        load(tile(0));
        cp_async_fence();
#pragma unroll 1
        for (int i = 0; i < tiles; ++i) {
            cp_async_wait<0>();
            prepare(tile(i));
            put_coefficients(tile(i));
            if (i + 1 < tiles) load(tile(i + 1));
            cp_async_fence();
            __syncthreads();
            const ExactSum total = add_steps(states);
            if (args.reverse)
                walk<true>(states, total);
            else
                walk<false>(states, total);
            __syncthreads();
        }
        store(states);
    }
};

template <SelectivePiecesConfig kConfig>
__global__ void __launch_bounds__(SelectivePiecesConfig::kThreads, kConfig.blocks_per_multiprocessor())
    selective_pieces(const __grid_constant__ SelectivePiecesArgs args) {
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<SelectivePiecesSharedPlan<kConfig>*>(memory);
    const SelectiveInputs& in = args.in;
    constexpr int kChannels = kConfig.channels();
    const int blocks_per_span = (args.span + kChannels - 1) / kChannels, blocks = in.dim / args.span * blocks_per_span;
    const int block = blockIdx.x % blocks, group = blockIdx.x / blocks % args.groups, thread = threadIdx.x;
    const int sequence = blockIdx.x / blocks / args.groups, piece = static_cast<int>(blockIdx.y) + (args.reverse ? 1 : 0);
    const Span whole = span_of(in.cu_seqlens, sequence, in.length);
    if (piece >= pieces_of(args.pieces, whole.length) - (args.reverse ? 0 : 1)) return;
    const int inside = block % blocks_per_span * kChannels;
    const SelectivePlace place{.channel = block / blocks_per_span * args.span + inside,
                               .channels = min(args.span - inside, kChannels),
                               .sequence = sequence,
                               .batch = in.cu_seqlens.data != nullptr ? 0 : sequence,
                               .span = span_of_piece(args.pieces, whole, piece)};
    using Block = SelectivePieces<kConfig>;
    Block{.args = args,
          .in = in,
          .shared = shared,
          .place = place,
          .piece = piece,
          .first = group * kConfig.group(),
          .own = Block::Own::of_thread(args.along_tokens),
          .lane = thread % kConfig.lanes,
          .channel = thread / kConfig.lanes}
        .run();
}

}  // namespace gdn_cuda::scan
