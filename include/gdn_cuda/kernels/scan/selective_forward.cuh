// scan/selective_forward: x_t = Ā_t x_{t−1} + (B̄u)_t, out = (Σ_n C x + D u) silu(z), for every channel of every sequence.
//
// A block of 128 threads walks the tokens of a sequence tile by tile, for 16 or 32 channels. Per tile, each thread prepares
// eight elements, along tokens or along channels as they lie in memory: u and δ become the step and the input of the
// recurrence, in fp32 in shared memory, beside the tile's B and C, which all channels of the block use. Then a channel's states
// are on a few lanes, some on each; a lane takes its states through the tile token by token, and the Σ C x of its states goes
// to shared memory, four tokens at a time. The thread that prepared an element adds them up and stores the output. What the
// next tile needs from memory is in flight meanwhile. States beyond lanes × states a lane take further passes over the tile.
//
// Bound: instructions, the special function unit and shared memory alike. A state and token takes, for a warp, an exponential,
// which is 8 cycles of a scheduler; 9 instructions by the machine code, all included (N = 16); and shared memory for 2.4 cycles
// of its multiprocessor. At 8×5120×2048 they were busy for 62, 70 and 59 % of the time, when it was a few instructions more
// (docs/benchmarks/scan.md).
#pragma once

#include <gdn_cuda/kernels/common/vector.cuh>
#include <gdn_cuda/kernels/scan/discretization.cuh>
#include <gdn_cuda/kernels/scan/selective/coefficients.cuh>
#include <gdn_cuda/kernels/scan/selective/elements.cuh>
#include <gdn_cuda/kernels/scan/selective/segment.cuh>
#include <gdn_cuda/kernels/scan/selective_forward_plan.cuh>

namespace gdn_cuda::scan {

template <SelectiveForwardConfig kConfig>
struct SelectiveForward {
    using Shared = SelectiveForwardSharedPlan<kConfig>;
    using Elements = SelectiveElements<Shared, SelectiveForwardArgs>;
    using CoefficientTiles = SelectiveCoefficients<Shared, SelectiveForwardArgs, true>;
    static constexpr int kTokens = kConfig.tokens(), kStates = kConfig.states;
    static constexpr int kLanes = kConfig.lanes, kGroup = kConfig.group(), kParts = kConfig.parts();
    using Lanes = ChannelLanes<kLanes>;
    static constexpr Transition kTransition = kConfig.transition;
    static constexpr bool kOnePass = kConfig.is_narrow;
    // Tokens. Where a lane has few states, four keep it too little busy; where it has more, registers are short.
    static constexpr int kAtOnce = kStates == 2 && !kConfig.is_complex ? 8 : 4;
    using Number = scan::Number<kConfig.is_complex>;
    using Poles = Pole<kTransition, kConfig.is_complex>;

    const SelectiveForwardArgs& args;
    const SelectiveInputs& in;
    Shared& shared;
    Elements elements;
    CoefficientTiles coefficients;
    int lane, channel;  // of the states

    // In shared memory.
    __device__ __forceinline__ float* row(int rows) const { return elements.row(rows, channel); }
    __device__ __forceinline__ static int place_in_row(int channel, int token) {
        return swizzled<kConfig.channels()>(channel, token);
    }

    // ---- The states of a lane

    struct States {
        Poles poles[kStates];
        Number x[kStates];
        Poles slowest;  // of real poles but the first: that of the slowest decay, infinitely fast where there is none
    };

    __device__ __forceinline__ i64 state_at(i64 row, int first) const {
        return (row * in.dim + shared.place.channel + opaque(channel)) * in.state_size + first + lane;
    }
    // Neighbouring states are on neighbouring lanes. Calls with the index of each that exists.
    template <class F>
    __device__ __forceinline__ void each_state(int first, const F& call) const {
#pragma unroll
        for (int s = 0; s < kStates; ++s)
            if (channel < shared.place.channels && first + s * kLanes + lane < in.state_size) call(s);
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
        const i64 c = shared.place.channel + opaque(channel);
        each_state(first, [&](int s) {
            const int n = s * kLanes + lane;
            states.poles[s] = Poles::of(constant_number<Number>(in.A, c, first + n));
            if (!in.B.varies) B[n] = constant_number<Number>(in.B, c, first + n);
            if (!in.C.varies) C[n] = constant_number<Number>(in.C, c, first + n);
        });
        if constexpr (Poles::kFollowsSteps && !kConfig.is_complex) {
            constexpr float kNoDecay = 1e-30f;  // over as many tokens as there may be
            states.slowest.rate = __int_as_float(0x7f800000);
#pragma unroll
            for (int n = 1; n < kStates; ++n)
                if (const float rate = fabsf(states.poles[n].rate); rate > kNoDecay)
                    states.slowest.rate = fminf(states.slowest.rate, rate);
        }
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
    __device__ __forceinline__ i64 row_of_piece() const {
        return static_cast<i64>(blockIdx.y) * in.sequences + shared.place.sequence;
    }
    __device__ __forceinline__ bool is_last_piece() const {
        const Span whole = span_of(in.cu_seqlens, shared.place.sequence, in.length);
        return static_cast<int>(blockIdx.y) + 1 == pieces_of(args.pieces, whole.length);
    }

    // ---- The recurrence

    enum class Pass { first, later, any };  // any: at run time, and B or C may be constant

    // Four tokens of B or C of one state.
    template <Pass kPass>
    __device__ __forceinline__ void load_four(Number (&to)[4], const typename Shared::Tile& from, bool varies, int n,
                                              int t) const {
        if (kPass != Pass::any || varies) {
            float x[4 * kParts];
            load_shared(x, &from.tile[n][t * kParts]);
#pragma unroll
            for (int j = 0; j < 4; ++j) to[j] = number_of<Number>(x, j);
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

    // Takes the states through the tile. Of the first kAnchored of a lane, from_zero is the tile's own part, and what is left
    // of the state before it is known exactly from the sum of the steps.
    template <Pass kPass, int kAnchored>
    __device__ __forceinline__ void walk(States& states, bool is_first, const ExactSum& total) {
        Number from_zero[kStates], start[kStates];
#pragma unroll
        for (int s = 0; s < kAnchored; ++s) {
            from_zero[s] = Number{};
            start[s] = states.x[s];
            if constexpr (Shared::kKeepsStart) shared.start[s][threadIdx.x] = states.x[s];
        }
        float* partial = row(Shared::kFirstSum + lane);
#pragma unroll 1
        for (int t = 0; t < kTokens; t += kAtOnce) {
            const int token = place_in_row(channel, t);  // tokens are exchanged by eights
#pragma unroll
            for (int four = 0; four < kAtOnce; four += 4) {
                float step[4], input[4], size[4] = {}, y[4] = {};
                load_shared(step, row(Elements::kStep) + token + four);
                load_shared(input, row(Elements::kInput) + token + four);
                if constexpr (has_size(kTransition)) load_shared(size, row(Elements::kSize) + token + four);
                if (kPass == Pass::later || (kPass == Pass::any && !is_first)) load_shared(y, partial + token + four);
                // One state ahead: exponentials and loads take long.
                Ahead now = ahead<kPass>(states, step, input, size, 0, t + four);
#pragma unroll
                for (int s = 0; s < kStates; ++s) {
                    Ahead next{};
                    if (s + 1 < kStates) next = ahead<kPass>(states, step, input, size, s + 1, t + four);
#pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        states.x[s] = after<Poles::kRelative>(states.x[s], now.steps[j]);
                        if (s < kAnchored) from_zero[s] = after<Poles::kRelative>(from_zero[s], now.steps[j]);
                        y[j] = kPass == Pass::first && s == 0 ? real_product(now.C[j], states.x[s])
                                                              : add_real_product(y[j], now.C[j], states.x[s]);
                    }
                    now = next;
                }
                __syncwarp();  // the sums may overwrite what other lanes read
                *reinterpret_cast<float4*>(partial + token + four) = {y[0], y[1], y[2], y[3]};
            }
        }
#pragma unroll
        for (int s = 0; s < kAnchored; ++s) {
            if constexpr (Shared::kKeepsStart) start[s] = shared.start[s][threadIdx.x];
            const Poles& pole = states.poles[s];
            if constexpr (kConfig.is_complex) {
                if (rounds_alike(pole, total)) states.x[s] = from_zero[s].plus(pole.decay_over(total), start[s]);
            } else {
                float relative;
                if (pole.long_memory(total.sum, relative)) states.x[s] = start[s] + (relative * start[s] + from_zero[s]);
            }
        }
    }
    // The sum of a tile's steps: each lane adds eight, which makes a tile. Phases take it exactly.
    __device__ __forceinline__ ExactSum total_of_steps() const {
        static_assert(kLanes * 8 == kTokens);
        if constexpr (!Poles::kFollowsSteps) return {};
        float step[8];
        ExactSum total;
        load_shared(step, row(Elements::kStep) + place_in_row(channel, lane * 8));
        if constexpr (kConfig.is_complex) {
#pragma unroll
            for (float x : step) total.add(x);
            Lanes::each_distance([&](int distance) {
                total.add(ExactSum{__shfl_xor_sync(0xffffffffu, total.sum, distance),
                                   __shfl_xor_sync(0xffffffffu, total.rest, distance)});
            });
        } else {
#pragma unroll
            for (int distance = 4; distance > 0; distance /= 2)  // in pairs: a chain of sums takes long
#pragma unroll
                for (int i = 0; i < distance; ++i) step[i] += step[i + distance];
            total.sum = Lanes::sum(step[0]);
        }
        return total;
    }
    __device__ __forceinline__ static bool rounds_alike(const Poles& pole, const ExactSum& total) {
        return pole.rounds_alike(total.sum, kTokens, 5e-6f);
    }
    // The first state of a lane has the longest memory as models order them, and often it alone is to be anchored.
    template <Pass kPass>
    __device__ __forceinline__ void walk_tile(States& states, bool is_first, const ExactSum& total) {
        if constexpr (!Poles::kFollowsSteps) {
            walk<kPass, 0>(states, is_first, {});
        } else if constexpr (kPass == Pass::any) {
            walk<kPass, kStates>(states, is_first, total);
        } else {
            const bool first = rounds_alike(states.poles[0], total);
            bool others = kConfig.is_complex && first;
            if constexpr (kConfig.is_complex) {
#pragma unroll
                for (int s = 1; s < kStates; ++s) others |= rounds_alike(states.poles[s], total);
            } else {
                others = rounds_alike(states.slowest, total);
            }
            if (__any_sync(0xffffffffu, others))
                walk<kPass, kStates>(states, is_first, total);
            else if (kConfig.is_complex || !__any_sync(0xffffffffu, first))
                walk<kPass, 0>(states, is_first, total);
            else
                walk<kPass, 1>(states, is_first, total);
        }
    }

    // States that do not stay in registers from tile to tile are in args.running.
    __device__ __forceinline__ void run(const SelectivePlace& place, int first_chunk) {
        if (threadIdx.x == 0) shared.place = place;
        elements.begin(place);
        elements.begin_outputs(place);
        coefficients.begin(place);
        __syncthreads();
        const int length = place.length, plain = coefficients.may_be_plain() ? elements.plain() : 0;
        const bool tiles = in.B.varies && in.C.varies && kTransition != Transition::rglru,
                   stays = kOnePass || in.state_size <= kGroup;
        const auto is_plain_along_tokens = [&](int tile) { return tile < plain && args.along_tokens; };
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
            ExactSum total;
            if (tile >= 0) {
                cp_async_wait<0>();
                of_kind<kConfig.is_narrow>(tile < plain, args.along_tokens, [&](auto kind) {
                    if (first == 0) elements.prepare(kind, tile);
                    if constexpr (kind.is_plain_along_tokens) {
                        // Each warp prepares the channels that it walks, so it needs no other one for the sums of their steps.
                        __syncwarp();
                        total = total_of_steps();
                    }
                    // Others may still walk the tile before; along tokens, each of them in its own rows of elements.
                    if (kind.along_tokens(args.along_tokens)) __syncthreads();
                    coefficients.put(kind, tile, first);
                    if (last_pass) elements.load_z(kind, tile);
                });
            }
            cp_async_fence();
            if (next_tile < length)
                of_kind<kConfig.is_narrow>(next_tile < plain, args.along_tokens, [&](auto kind) {
                    if (next_first == 0) elements.load(kind, next_tile);
                    coefficients.load(kind, next_tile, next_first);
                });
            cp_async_fence();
            if (tile >= 0) {
                if (!stays) {
                    load_poles(states, first);
                    load_states(states, args.running, row_of_piece(), first);
                }
                if (args.states != nullptr && tile % kStateChunk == 0)
                    keep_states(states, first_chunk + tile / kStateChunk, first);
                __syncthreads();
                if (!is_plain_along_tokens(tile)) total = total_of_steps();
                if (!tiles)
                    walk_tile<Pass::any>(states, first == 0, total);
                else if (kOnePass || first == 0)
                    walk_tile<Pass::first>(states, true, total);
                else if constexpr (!kOnePass)
                    walk_tile<Pass::later>(states, false, total);
                if (!stays) store_states(states, args.running, row_of_piece(), first);
                if (last_pass) cp_async_wait<1>();  // for z
                of_kind<kConfig.is_narrow>(tile < plain, args.along_tokens, [&](auto kind) {
                    if (kind.along_tokens(args.along_tokens))
                        __syncwarp();
                    else
                        __syncthreads();
                    if (last_pass) elements.finish(kind, tile);
                });
            }
            tile = next_tile, first = next_first;
            if (tile >= length) break;
        }
        if (!is_last_piece()) return;
        if (stays) return store_states(states, args.last_state, shared.place.sequence, 0);
        if (args.running == args.last_state) return;
#pragma unroll 1
        for (int first = 0; first < in.state_size; first += kGroup) {
            load_states(states, args.running, row_of_piece(), first);
            store_states(states, args.last_state, shared.place.sequence, first);
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
    const Span span = span_of_piece(args.pieces, whole, piece);
    const SelectivePlace place{.channel = block / blocks_per_span * args.span + inside,
                               .channels = min(args.span - inside, kChannels),
                               .sequence = sequence,
                               .batch = in.cu_seqlens.data != nullptr ? 0 : sequence,
                               .length = span.length,
                               .start = span.start};
    using Block = SelectiveForward<kConfig>;
    Block{args,
          in,
          shared,
          {args, shared, Block::Elements::Own::of_thread(thread, args.along_tokens)},
          {args, shared},
          Block::Lanes::lane(thread),
          Block::Lanes::channel(thread)}
        .run(place, args.states == nullptr ? 0 : first_chunk(in, sequence) + piece * (args.pieces.length / kStateChunk));
}

}  // namespace gdn_cuda::scan
