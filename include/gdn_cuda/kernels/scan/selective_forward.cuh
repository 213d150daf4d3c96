// scan/selective_forward: x_t = Ā_t x_{t−1} + (B̄u)_t, out = (Σ_n C x + D u) silu(z), for every channel of every sequence.
//
// A block of 128 threads walks the tokens of a sequence tile by tile, for 16 or 32 channels. Per tile, each thread prepares
// eight elements, along tokens or along channels as they lie in memory: u and δ become the step and the input of the
// recurrence, in fp32 in shared memory, beside the tile's B and C, which all channels of the block use. Then a channel's states
// are on a few lanes, some on each; a lane takes its states through the tile token by token, and the Σ C x of its states go to
// shared memory, four tokens at a time. The thread that prepared an element adds them up and stores the output. What the next
// tile needs from memory is in flight meanwhile. States beyond lanes × states a lane take further passes over the tile.
//
// Elements that are not whole aligned vectors of a whole tile take a slower path, one at a time.
//
// Bound: instructions and the special function unit alike. A state and token takes an exponential at 16 a clock and
// multiprocessor, 8 cycles of a scheduler for a warp, and 11 instructions, all included (N = 16). docs/benchmarks/scan.md has
// the share reached.
#pragma once

#include <gdn_cuda/kernels/common/vector.cuh>
#include <gdn_cuda/kernels/scan/discretization.cuh>
#include <gdn_cuda/kernels/scan/eight.cuh>
#include <gdn_cuda/kernels/scan/selective_forward_plan.cuh>
#include <gdn_cuda/kernels/scan/selective_piece.cuh>
#include <gdn_cuda/kernels/scan/selective_tile.cuh>

namespace gdn_cuda::scan {

template <SelectiveForwardConfig kConfig>
struct SelectiveForward {
    using Shared = SelectiveForwardSharedPlan<kConfig>;
    static constexpr int kChannels = kConfig.channels(), kTokens = kConfig.tokens(), kStates = kConfig.states;
    static constexpr int kLanes = kConfig.lanes, kGroup = kConfig.group(), kParts = kConfig.parts();
    static constexpr int kVectors = Shared::kVectors;  // of B and C, a thread
    static constexpr Transition kTransition = kConfig.transition;
    static constexpr bool kOnePass = kConfig.is_narrow;
    using Own = Neighbours<kChannels, kTokens>;
    using Number = scan::Number<kConfig.is_complex>;
    using Poles = Pole<kTransition, kConfig.is_complex>;
    using Vector = Eight<kConfig.is_narrow>;

    const SelectiveForwardArgs& args;
    const SelectiveInputs& in;
    Shared& shared;
    SelectivePlace place;
    Own own;                           // of a tile
    int lane, channel;                 // of the states
    int full_rows, full_coefficients;  // ends of the tiles that are whole and of aligned vectors
    char* addresses[4 + kVectors];     // of the first tile
    enum Address { at_u, at_delta, at_z, at_out, at_coefficients };

    enum InFlight { u_even, u_odd, delta, z, first_coefficient };
    __device__ __forceinline__ Vector& in_flight(int i) const {
        return reinterpret_cast<Vector&>(shared.in_flight[i][threadIdx.x]);
    }
    __device__ __forceinline__ static int u_of(int tile) { return tile / kTokens % 2 == 0 ? u_even : u_odd; }

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
    // The compiler would compute these addresses again for every tile, in ten instructions each.
    __device__ __forceinline__ static char* opaque(char* address) {
        asm volatile("" : "+l"(address));
        return address;
    }
    // And what rare paths compute of this would be kept in registers through the loop over tiles.
    __device__ __forceinline__ static int opaque(int x) {
        asm volatile("" : "+r"(x));
        return x;
    }
    // From the address of the first tile; the host has seen to it that a token's stride fits.
    template <class Byte>
    __device__ __forceinline__ Byte* in_tile(Byte* first, const ChannelRows& x, int tile) const {
        return first + static_cast<i64>(tile) * (static_cast<int>(x.token) << (Vector::is_wide(args.io) ? 2 : 1));
    }
    __device__ __forceinline__ float load_one(const ChannelRows& x, int tile, int i) const {
        return load_number({x.data, args.io}, offset_of(x, tile, i));
    }

    // What the recurrence needs of an element.
    __device__ __forceinline__ ChannelStep prepared(float u, float delta, float delta_a, float bias) const {
        delta += bias;
        if (in.delta_softplus) delta = softplus_fast(delta);
        if constexpr (kTransition == Transition::s7) return {-1.f / fmaf(delta, delta, 0.5f), u, 0.f};
        if constexpr (kTransition == Transition::rglru) return {delta, u, 0.f};
        const float step = in.delta_a.data != nullptr ? delta_a : delta;
        if constexpr (has_size(kTransition)) return {step, u, delta};
        return {step, args.input_times_delta ? u * delta : u, 0.f};
    }
    __device__ __forceinline__ void prepare(int tile) {
        if (tile < full_rows) {
            float of_u[8], of_delta[8], of_delta_a[8] = {}, bias[8];
            in_flight(u_of(tile)).to_floats(args.io, of_u);
            in_flight(delta).to_floats(args.io, of_delta);
            if (in.delta_a.data != nullptr) {  // rare, so not in flight before
                Vector raw;
                raw.load(address(in.delta_a, tile), args.io);
                raw.to_floats(args.io, of_delta_a);
            }
            of_channels(shared.bias, bias);
            float step[8], input[8], size[8];
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const ChannelStep x = prepared(of_u[i], of_delta[i], of_delta_a[i], bias[i]);
                step[i] = x.step, input[i] = x.input, size[i] = x.size;
            }
            put(kStep, step);
            put(kInput, input);
            if constexpr (has_size(kTransition)) put(kSize, size);
            return;
        }
#pragma unroll 1
        for (int element = 0; element < 8; ++element) {
            const int i = opaque(element), c = own.channel_of(i), token = swizzled<kChannels>(c, own.token_of(i));
            ChannelStep x{};  // leaves the states as they are
            if (exists(tile, i))
                x = prepared(load_one(in.u, tile, i), load_one(in.delta, tile, i),
                             in.delta_a.data != nullptr ? load_one(in.delta_a, tile, i) : 0.f, shared.bias[c]);
            row(kStep, c)[token] = x.step;
            row(kInput, c)[token] = x.input;
            if constexpr (has_size(kTransition)) row(kSize, c)[token] = x.size;
        }
    }
    __device__ __forceinline__ void of_channels(const float (&per_channel)[kChannels], float (&x)[8]) const {
        if (own.along_tokens) {
#pragma unroll
            for (int i = 0; i < 8; ++i) x[i] = per_channel[own.channel];
        } else {
            load_shared(x, &per_channel[own.channel]);
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

    __device__ __forceinline__ static float ungated(float y, float of_u, float D) {
        if constexpr (kConfig.is_complex) y *= 2.f;
        return fmaf(D, of_u, y);
    }
    // Stores the outputs of the elements that the thread prepared.
    __device__ __forceinline__ void finish(int tile) const {
        if (tile < full_rows) {
            float y[8] = {}, of_u[8], of_z[8], D[8];
            const float* from = row(Shared::kFirstSum, own.channel) + swizzled<kChannels>(own.channel, own.token);
#pragma unroll
            for (int part = 0; part < kLanes; ++part) {
                float x[8];
                if (own.along_tokens) {
                    load_shared(x, from);
                } else {
#pragma unroll
                    for (int i = 0; i < 8; ++i) x[i] = from[i * Shared::kPitch];
                }
#pragma unroll
                for (int i = 0; i < 8; ++i) y[i] += x[i];
                from += sizeof(shared.rows[0]) / sizeof(float);
            }
            of_channels(shared.D, D);
            in_flight(u_of(tile)).to_floats(args.io, of_u);
#pragma unroll
            for (int i = 0; i < 8; ++i) y[i] = ungated(y[i], of_u[i], D[i]);
            if (in.z.data != nullptr) {
                in_flight(z).to_floats(args.io, of_z);
#pragma unroll
                for (int i = 0; i < 8; ++i) y[i] *= silu_fast(of_z[i]);
            }
            Vector::of(args.io, y).store(in_tile(addresses[at_out], args.out, tile), args.io);
            return;
        }
#pragma unroll 1
        for (int element = 0; element < 8; ++element) {
            const int i = opaque(element);
            if (!exists(tile, i)) continue;
            const int c = own.channel_of(i), token = swizzled<kChannels>(c, own.token_of(i));
            float y = 0.f;
            for (int part = 0; part < kLanes; ++part) y += row(Shared::kFirstSum + part, c)[token];
            y = ungated(y, in.D != nullptr ? load_one(in.u, tile, i) : 0.f, shared.D[c]);
            if (in.z.data != nullptr) y *= silu_fast(load_one(in.z, tile, i));
            store_number(args.out.data, args.io, offset_of(args.out, tile, i), y);
        }
    }

    // ---- B and C of a tile, states from `first` on: eight real numbers a vector, along tokens or along states

    struct CoefficientPlace {
        const Coefficients* from;
        float (*to)[Shared::kRowPitch];
        int n, token;
        bool along_tokens;

        __device__ __forceinline__ int n_of(int i) const { return along_tokens ? n : n + i / kParts; }
        __device__ __forceinline__ int token_of(int i) const { return along_tokens ? token + i / kParts : token; }
        __device__ __forceinline__ float& to_of(int i) const { return to[n_of(i)][token_of(i) * kParts + i % kParts]; }
    };
    __device__ __forceinline__ CoefficientPlace coefficient_place(int i) const {
        constexpr int kOfB = kGroup * kParts * kTokens / 8, kAlongTokens = kTokens * kParts / 8,
                      kAlongStates = kGroup * kParts / 8;
        const int vector = threadIdx.x + i * SelectiveForwardConfig::kThreads, of = vector % kOfB;
        const bool is_B = vector < kOfB;
        const Coefficients& from = is_B ? in.B : in.C;
        const bool along_tokens = from.n != kParts;
        const int n = along_tokens ? of / kAlongTokens : of % kAlongStates * (8 / kParts);
        const int token = along_tokens ? of % kAlongTokens * (8 / kParts) : of / kAlongStates;
        return {&from, is_B ? shared.B.tile : shared.C.tile, n, token, along_tokens};
    }
    __device__ __forceinline__ i64 coefficient_offset(const CoefficientPlace& at, int tile, int first, int i) const {
        const Coefficients& from = *at.from;
        return place.batch * from.batch + place.channel / (in.dim / from.groups) * from.group + (first + at.n_of(i)) * from.n +
               (place.span.start + tile + at.token_of(i)) * from.token + i % kParts * from.pair;
    }
    __device__ __forceinline__ bool coefficients_are_full(int tile, int first) const {
        return tile < full_coefficients && first + kGroup <= in.state_size;
    }
    __device__ __forceinline__ void load_coefficients(int tile, int first) const {
        if (!coefficients_are_full(tile, first)) return;
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            const Coefficients& from = *coefficient_place(i).from;
            const int shift = Vector::is_wide(from.type) ? 2 : 1;
            Vector::fetch(in_flight(first_coefficient + i),
                          addresses[at_coefficients + i] + static_cast<i64>(first) * (static_cast<int>(from.n) << shift) +
                              static_cast<i64>(tile) * (static_cast<int>(from.token) << shift),
                          from.type);
        }
    }
    __device__ __forceinline__ void put_coefficients(int tile, int first) const {
        const bool full = coefficients_are_full(tile, first);
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            const CoefficientPlace at = coefficient_place(i);
            if (full) {
                float x[8];
                in_flight(first_coefficient + i).to_floats(at.from->type, x);
                if (at.along_tokens) {
                    auto* to = reinterpret_cast<float4*>(&at.to_of(0));
                    to[0] = {x[0], x[1], x[2], x[3]};
                    to[1] = {x[4], x[5], x[6], x[7]};
                } else {
#pragma unroll
                    for (int j = 0; j < 8; ++j) at.to_of(j) = x[j];
                }
            } else if (at.from->varies) {
#pragma unroll 1
                for (int element = 0; element < 8; ++element) {
                    const int j = opaque(element);
                    const bool exists = first + at.n_of(j) < in.state_size && tile + at.token_of(j) < place.span.length;
                    at.to_of(j) =
                        exists ? load_number({at.from->data, at.from->type}, coefficient_offset(at, tile, first, j)) : 0.f;
                }
            }
        }
    }

    // ---- The states of a lane

    struct States {
        Poles poles[kStates];
        Number x[kStates];
    };

    __device__ __forceinline__ i64 state_at(i64 row, int first) const {
        return (row * in.dim + place.channel + opaque(channel)) * in.state_size + first + lane;
    }
    // Neighbouring states are on neighbouring lanes. Calls with the index of each that exists.
    template <class F>
    __device__ __forceinline__ void each_state(int first, const F& call) const {
#pragma unroll
        for (int s = 0; s < kStates; ++s)
            if (channel < place.channels && first + s * kLanes + lane < in.state_size) call(s);
    }
    __device__ __forceinline__ static Number constant(const Coefficients& from, i64 channel, int n) {
        const float* at = static_cast<const float*>(from.data) + channel * from.group + n * from.n;
        if constexpr (kConfig.is_complex)
            return {at[0], at[from.pair]};
        else
            return *at;
    }
    // And B and C where they are constant: the thread that stores them reads them.
    __device__ __forceinline__ void load_poles(States& states, int first) const {
        auto *B = reinterpret_cast<Number*>(shared.B.constant[channel]),
             *C = reinterpret_cast<Number*>(shared.C.constant[channel]);
#pragma unroll
        for (int s = 0; s < kStates; ++s) {
            states.poles[s] = Poles::of(Number{});
            if (!in.B.varies) B[s * kLanes + lane] = Number{};
            if (!in.C.varies) C[s * kLanes + lane] = Number{};
        }
        const i64 c = place.channel + opaque(channel);
        each_state(first, [&](int s) {
            const int n = s * kLanes + lane;
            states.poles[s] = Poles::of(constant(in.A, c, first + n));
            if (!in.B.varies) B[n] = constant(in.B, c, first + n);
            if (!in.C.varies) C[n] = constant(in.C, c, first + n);
        });
    }
    __device__ __forceinline__ void load_states(States& states, const void* from, i64 row, int first) const {
#pragma unroll
        for (Number& x : states.x) x = Number{};
        if (from == nullptr) return;
        const Number* x = static_cast<const Number*>(from) + state_at(row, first);
        each_state(first, [&](int s) { states.x[s] = x[s * kLanes]; });
    }
    __device__ __forceinline__ void store_states(const States& states, void* to, i64 row, int first) const {
        Number* x = static_cast<Number*>(to) + state_at(row, first);
        each_state(first, [&](int s) { x[s * kLanes] = states.x[s]; });
    }

    // Packed sequences that overlap have more chunks than there is memory for.
    __device__ __forceinline__ void keep_states(const States& states, int chunk, int first) const {
        if (chunk < args.chunks) store_states(states, args.states, chunk, first);
    }
    // The row of the piece in the states before pieces.
    __device__ __forceinline__ i64 row_of_piece() const { return static_cast<i64>(blockIdx.y) * in.sequences + place.sequence; }
    __device__ __forceinline__ bool is_last_piece() const {
        const Span whole = span_of(in.cu_seqlens, opaque(place.sequence), in.length);
        return static_cast<int>(blockIdx.y) + 1 == pieces_of(args.pieces, whole.length);
    }

    // ---- The recurrence

    template <int kCount>
    __device__ __forceinline__ static Number number(const float (&x)[kCount], int s) {
        if constexpr (kConfig.is_complex)
            return Number{x[2 * s], x[2 * s + 1]};
        else
            return x[s];
    }

    enum class Pass { first, later, any };  // any: at run time, and B or C may be constant

    // Four tokens of B or C of one state.
    template <Pass kPass>
    __device__ __forceinline__ void load_four(Number (&to)[4], const typename Shared::Tile& from, bool varies, int n,
                                              int t) const {
        if (kPass != Pass::any || varies) {
            float x[4 * kParts];
            load_shared(x, &from.tile[n][t * kParts]);
#pragma unroll
            for (int j = 0; j < 4; ++j) to[j] = number(x, j);
        } else {
#pragma unroll
            for (Number& x : to) x = reinterpret_cast<const Number*>(from.constant[channel])[n];
        }
    }

    // Four tokens of one state: all that does not depend on the state itself.
    struct Ahead {
        Step<Number> steps[4];
        Number C[4];
    };
    template <Pass kPass>
    __device__ __forceinline__ Ahead ahead(const States& states, const float (&step)[4], const float (&input)[4],
                                           const float (&size)[4], int s, int t) const {
        Ahead four;
        Number B[4];
        load_four<kPass>(B, shared.B, in.B.varies, s * kLanes + lane, t);
        load_four<kPass>(four.C, shared.C, in.C.varies, s * kLanes + lane, t);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            if constexpr (kTransition == Transition::rglru)
                if (!in.B.varies) four.C[j] = four.C[j] * B[j];
            four.steps[j] = states.poles[s].step({step[j], input[j], size[j]}, B[j]);
        }
        return four;
    }

    // Takes the states through the tile. kAnchored: from_zero is the tile's own part of the states, and what is left of the
    // states before it is known exactly from the sum of the steps.
    template <Pass kPass, bool kAnchored>
    __device__ __forceinline__ void walk(States& states, bool is_first, float total) {
        Number from_zero[kStates], start[kStates];
#pragma unroll
        for (int s = 0; s < kStates; ++s) {
            from_zero[s] = Number{};
            start[s] = states.x[s];
            if constexpr (kAnchored && Shared::kKeepsStart) shared.start[s][threadIdx.x] = states.x[s];
        }
        float* partial = row(Shared::kFirstSum + lane, channel);
#pragma unroll 1
        for (int eight = 0; eight < kTokens; eight += 8) {
            const int token = swizzled<kChannels>(channel, eight);  // tokens are exchanged by eights
#pragma unroll 1
            for (int four = 0; four < 8; four += 4) {
                float step[4], input[4], size[4] = {}, y[4] = {};
                load_shared(step, row(kStep, channel) + token + four);
                load_shared(input, row(kInput, channel) + token + four);
                if constexpr (has_size(kTransition)) load_shared(size, row(kSize, channel) + token + four);
                if (kPass == Pass::later || (kPass == Pass::any && !is_first)) load_shared(y, partial + token + four);
                // One state ahead: exponentials and loads take long.
                Ahead now = ahead<kPass>(states, step, input, size, 0, eight + four);
#pragma unroll
                for (int s = 0; s < kStates; ++s) {
                    Ahead next{};
                    if (s + 1 < kStates) next = ahead<kPass>(states, step, input, size, s + 1, eight + four);
#pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        states.x[s] = after<Poles::kRelative>(states.x[s], now.steps[j]);
                        if constexpr (kAnchored) from_zero[s] = after<false>(from_zero[s], now.steps[j]);
                        y[j] = kPass == Pass::first && s == 0 ? real_product(now.C[j], states.x[s])
                                                              : add_real_product(y[j], now.C[j], states.x[s]);
                    }
                    now = next;
                }
                __syncwarp();  // the sums may overwrite what other lanes read
                *reinterpret_cast<float4*>(partial + token + four) = {y[0], y[1], y[2], y[3]};
            }
        }
        if constexpr (kAnchored) {
#pragma unroll
            for (int s = 0; s < kStates; ++s) {
                if constexpr (Shared::kKeepsStart) start[s] = shared.start[s][threadIdx.x];
                float relative;
                if (states.poles[s].long_memory(total, relative)) states.x[s] = start[s] + (relative * start[s] + from_zero[s]);
            }
        }
    }
    // The sum of a tile's steps: each lane adds eight, which makes a tile.
    __device__ __forceinline__ float total_of_steps() const {
        static_assert(kLanes * 8 == kTokens);
        float step[8], total = 0.f;
        load_shared(step, row(kStep, channel) + swizzled<kChannels>(channel, lane * 8));
#pragma unroll
        for (float x : step) total += x;
        return group_sum<kLanes>(total);
    }
    template <Pass kPass>
    __device__ __forceinline__ void walk_tile(States& states, bool is_first) {
        if constexpr (Poles::kRelative) {
            walk<kPass, false>(states, is_first, 0.f);
        } else {
            const float total = total_of_steps();
            bool is_long = kPass == Pass::any;
#pragma unroll
            for (const Poles& pole : states.poles) is_long |= pole.rounds_alike(total, kTokens);
            if (__any_sync(0xffffffffu, is_long))
                walk<kPass, true>(states, is_first, total);
            else if constexpr (kPass != Pass::any)
                walk<kPass, false>(states, is_first, total);
        }
    }

    // What the next pass, of this tile or the next one, needs from memory.
    __device__ __forceinline__ void load_next(int tile, int first) const {
        if (first == 0 && tile < full_rows) {
            Vector::fetch(in_flight(u_of(tile)), in_tile(addresses[at_u], in.u, tile), args.io);
            Vector::fetch(in_flight(delta), in_tile(addresses[at_delta], in.delta, tile), args.io);
        }
        load_coefficients(tile, first);
    }
    __device__ __forceinline__ void begin() {
        const int whole = place.span.length / kTokens * kTokens;
        full_rows = args.rows_are_vectors && place.channels == kChannels ? whole : 0;
        full_coefficients = args.coefficients_are_vectors ? whole : 0;
        addresses[at_u] = opaque(address(in.u, 0)), addresses[at_delta] = opaque(address(in.delta, 0));
        addresses[at_z] = opaque(address(in.z, 0)), addresses[at_out] = opaque(address(args.out, 0));
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            const CoefficientPlace at = coefficient_place(i);
            addresses[at_coefficients + i] =
                opaque(static_cast<char*>(at.from->data) +
                       (coefficient_offset(at, 0, 0, 0) << (Vector::is_wide(at.from->type) ? 2 : 1)));
        }
        if (threadIdx.x < kChannels) {
            const int c = threadIdx.x;
            const bool exists = c < place.channels;
            shared.D[c] = exists && in.D != nullptr ? in.D[place.channel + c] : 0.f;
            shared.bias[c] = exists && in.delta_bias != nullptr ? in.delta_bias[place.channel + c] : 0.f;
        }
        __syncthreads();
    }

    // States that do not stay in registers from tile to tile are in args.running.
    __device__ __forceinline__ void run(int first_chunk) {
        begin();
        const bool tiles = in.B.varies && in.C.varies && kTransition != Transition::rglru,
                   stays = kOnePass || in.state_size <= kGroup;
        States states;
#pragma unroll 1
        for (int first = 0; first < in.state_size; first += kGroup) {
            load_states(states, in.initial_state, row_of_piece(), first);
            if (!stays) store_states(states, args.running, row_of_piece(), first);
        }
        load_poles(states, 0);
        int tile = -kTokens, first = kOnePass ? 0 : in.state_size;  // the first round only loads
#pragma unroll 1
        for (;;) {
            const bool last_pass = kOnePass || first + kGroup >= in.state_size;
            const int next_tile = last_pass ? tile + kTokens : tile, next_first = last_pass ? 0 : first + kGroup;
            if (tile >= 0) {
                cp_async_wait<0>();
                if (first == 0) prepare(tile);
                put_coefficients(tile, first);
                if (last_pass && in.z.data != nullptr && tile < full_rows)
                    Vector::fetch(in_flight(z), in_tile(addresses[at_z], in.z, tile), args.io);
            }
            cp_async_fence();
            if (next_tile < place.span.length) load_next(next_tile, next_first);
            cp_async_fence();
            if (tile >= 0) {
                if (!stays) {
                    load_poles(states, first);
                    load_states(states, args.running, row_of_piece(), first);
                }
                if (args.states != nullptr && tile % kStateChunk == 0) keep_states(states, first_chunk + tile / kStateChunk, first);
                __syncthreads();
                if (!tiles)
                    walk_tile<Pass::any>(states, first == 0);
                else if (kOnePass || first == 0)
                    walk_tile<Pass::first>(states, true);
                else if constexpr (!kOnePass)
                    walk_tile<Pass::later>(states, false);
                if (!stays) store_states(states, args.running, row_of_piece(), first);
                __syncthreads();
                if (last_pass) {
                    cp_async_wait<1>();  // for z
                    finish(tile);
                }
            }
            tile = next_tile, first = next_first;
            if (tile >= place.span.length) break;
        }
        if (!is_last_piece()) return;
        if (stays) return store_states(states, args.last_state, place.sequence, 0);
        if (args.running == args.last_state) return;
#pragma unroll 1
        for (int first = 0; first < in.state_size; first += kGroup) {
            load_states(states, args.running, row_of_piece(), first);
            store_states(states, args.last_state, place.sequence, first);
        }
    }
};

template <SelectiveForwardConfig kConfig>
__global__ void __launch_bounds__(SelectiveForwardConfig::kThreads, kConfig.blocks_per_multiprocessor(kCompiledCapability))
    selective_forward(const __grid_constant__ SelectiveForwardArgs args) {
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<SelectiveForwardSharedPlan<kConfig>*>(memory);
    const SelectiveInputs& in = args.in;
    constexpr int kChannels = kConfig.channels();
    const int blocks_per_span = (args.span + kChannels - 1) / kChannels, blocks = in.dim / args.span * blocks_per_span;
    const int sequence = blockIdx.x / blocks, block = blockIdx.x % blocks, thread = threadIdx.x;
    const int inside = block % blocks_per_span * kChannels, piece = blockIdx.y;
    const Span whole = span_of(in.cu_seqlens, sequence, in.length);
    if (piece >= pieces_of(args.pieces, whole.length)) return;
    const SelectivePlace place{.channel = block / blocks_per_span * args.span + inside,
                               .channels = min(args.span - inside, kChannels),
                               .sequence = sequence,
                               .batch = in.cu_seqlens.data != nullptr ? 0 : sequence,
                               .span = span_of_piece(args.pieces, whole, piece)};
    using Block = SelectiveForward<kConfig>;
    Block{args, in, shared, place, Block::Own::of_thread(args.along_tokens), thread % kConfig.lanes, thread / kConfig.lanes}
        .run(args.states == nullptr ? 0 : first_chunk(in, sequence) + piece * (args.pieces.length / kStateChunk));
}

}  // namespace gdn_cuda::scan
