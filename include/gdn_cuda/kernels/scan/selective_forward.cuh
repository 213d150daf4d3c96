// scan/selective_forward: x_t = Ā_t x_{t−1} + (B̄u)_t, out = (Σ_n C x + D u) silu(z), for every channel of every sequence.
//
// A block of 128 threads iterates over the tiles of a sequence, for 16 or 32 channels. In each tile a thread prepares eight
// elements, contiguous in memory along tokens or along channels: u and δ become the step and the input of the recurrence, fp32
// in shared memory, next to the tile's B and C, which all channels of the block read. For the recurrence, a channel's states
// are spread over 4 or 8 lanes, in registers; each lane advances its states token by token and writes their Σ C x to shared
// memory, four tokens at a time. The thread that prepared an element then adds the lanes' sums and stores the output. Loads of
// the next tile are in flight meanwhile. More states than the lanes hold take further passes over the tile.
//
// Bound: the special function unit, instruction issue and shared memory, about equally. For each state and token a warp takes
// one exponential (8 cycles of its scheduler), 9 instructions in all, counted in the machine code for N = 16, and 2.4 cycles of
// the SM's shared memory. Measured at 8×5120×2048, with a few instructions more, these were busy for 62, 70 and 59 % of the
// time (docs/benchmarks/scan.md).
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
    // Tokens of an unrolled step. Lanes with two real states need eight for enough independent instructions; with more states,
    // registers are short.
    static constexpr int kAtOnce = kStates == 2 && !kConfig.is_complex ? 8 : 4;
    using Number = scan::Number<kConfig.is_complex>;
    using Poles = Pole<kTransition, kConfig.is_complex, kConfig.is_complex && kConfig.is_narrow>;

    const SelectiveForwardArgs& args;
    const SelectiveInputs& in;
    Shared& shared;
    Elements elements;
    CoefficientTiles coefficients;
    int lane, channel;  // where this thread's states are

    __device__ __forceinline__ float* row(int rows) const { return elements.row(rows, channel); }
    __device__ __forceinline__ static int place_in_row(int channel, int token) {
        return swizzled<kConfig.channels()>(channel, token);
    }

    // ---- The states of a lane

    struct States {
        Poles poles[kStates];
        Number x[kStates];
        Poles slowest;  // the real pole with the slowest decay, the first pole aside; its rate is infinite if there is none
    };

    __device__ __forceinline__ i64 state_at(i64 row, int first) const {
        return (row * in.dim + shared.place.channel + opaque(channel)) * in.state_size + first + lane;
    }
    // Consecutive states are on consecutive lanes of the channel. Calls `call` with the index of each state that exists.
    template <class F>
    __device__ __forceinline__ void each_state(int first, const F& call) const {
#pragma unroll
        for (int s = 0; s < kStates; ++s)
            if (channel < shared.place.channels && first + s * kLanes + lane < in.state_size) call(s);
    }
    // Loads the poles, and constant B and C, which each thread stores to shared memory for itself.
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
            constexpr float kNoDecay = 1e-30f;  // not even over the longest sequence
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

    // cu_seqlens with overlapping sequences have more chunks than there is memory for.
    __device__ __forceinline__ void keep_states(const States& states, int chunk, int first) const {
        if (chunk < args.chunks) store_states(states, args.states, chunk, first);
    }
    // The segment's row in the states before segments.
    __device__ __forceinline__ i64 segment_row() const {
        return static_cast<i64>(blockIdx.y) * in.sequences + shared.place.sequence;
    }
    __device__ __forceinline__ bool is_last_segment() const {
        const Span whole = span_of(in.cu_seqlens, shared.place.sequence, in.length);
        return static_cast<int>(blockIdx.y) + 1 == segment_count(args.segments, whole.length);
    }

    // ---- The recurrence

    enum class Pass { first, later, any };  // any: first or later is tested at run time, and B or C may be constant

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

    // Steps and C of one state for four tokens: all inputs of the recurrence but the state itself.
    struct StateSteps {
        Step<Number> steps[4];
        Number C[4];
    };
    template <Pass kPass>
    __device__ __forceinline__ StateSteps prepare_steps(const States& states, const float (&step)[4], const float (&input)[4],
                                                        const float (&size)[4], int s, int t) const {
        StateSteps result;
        Number B[4];
        load_four<kPass>(B, shared.B, in.B.varies, s * kLanes + lane, t);
        load_four<kPass>(result.C, shared.C, in.C.varies, s * kLanes + lane, t);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            if constexpr (kTransition == Transition::rglru)
                if (!in.B.varies) result.C[j] = result.C[j] * B[j];
            result.steps[j] = states.poles[s].step({step[j], input[j], size[j]}, B[j]);
        }
        return result;
    }

    // Advances the states through the tile. The first kAnchored states of a lane are also advanced from zero: their final state
    // is that result plus the state before the tile times its decay over the tile, which the sum of the steps gives without
    // drift.
    template <Pass kPass, int kAnchored>
    __device__ __forceinline__ void advance(States& states, bool is_first, const ExactSum& total) {
        Number from_zero[kStates], start[kStates];
#pragma unroll
        for (int s = 0; s < kAnchored; ++s) {
            from_zero[s] = Number{};
            start[s] = states.x[s];
            if constexpr (Shared::kKeepsStart) shared.start[s][threadIdx.x] = states.x[s];
        }
        float* partial = row(Shared::kFirstSum + (Shared::kPairs ? lane / 2 : lane));
#pragma unroll 1
        for (int t = 0; t < kTokens; t += kAtOnce) {
            const int token = place_in_row(channel, t);  // the swizzle permutes groups of eight tokens
#pragma unroll
            for (int four = 0; four < kAtOnce; four += 4) {
                float step[4], input[4], size[4] = {}, y[4] = {};
                load_shared(step, row(Elements::kStep) + token + four);
                load_shared(input, row(Elements::kInput) + token + four);
                if constexpr (has_size(kTransition)) load_shared(size, row(Elements::kSize) + token + four);
                if (kPass == Pass::later || (kPass == Pass::any && !is_first)) load_shared(y, partial + token + four);
                // Prepared one state ahead, to hide the latency of exponentials and loads.
                StateSteps now = prepare_steps<kPass>(states, step, input, size, 0, t + four);
#pragma unroll
                for (int s = 0; s < kStates; ++s) {
                    StateSteps next{};
                    if (s + 1 < kStates) next = prepare_steps<kPass>(states, step, input, size, s + 1, t + four);
#pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        states.x[s] = after<Poles::kRelative>(states.x[s], now.steps[j]);
                        if (s < kAnchored) from_zero[s] = after<Poles::kRelative>(from_zero[s], now.steps[j]);
                        y[j] = kPass == Pass::first && s == 0 ? real_product(now.C[j], states.x[s])
                                                              : add_real_product(y[j], now.C[j], states.x[s]);
                    }
                    now = next;
                }
                if constexpr (Shared::kPairs) {  // each lane of a pair sums two tokens
                    const bool is_odd = lane % 2 != 0;
                    float sums[2];
#pragma unroll
                    for (int j = 0; j < 2; ++j) {
                        const float sent = is_odd ? y[j] : y[j + 2], kept = is_odd ? y[j + 2] : y[j];
                        sums[j] = kept + __shfl_xor_sync(0xffffffffu, sent, Lanes::kLaneStride);
                    }
                    __syncwarp();
                    *reinterpret_cast<float2*>(partial + token + four + (is_odd ? 2 : 0)) = {sums[0], sums[1]};
                } else {
                    __syncwarp();  // the sums may overwrite elements that other lanes read
                    *reinterpret_cast<float4*>(partial + token + four) = {y[0], y[1], y[2], y[3]};
                }
            }
        }
#pragma unroll
        for (int s = 0; s < kAnchored; ++s) {
            if constexpr (Shared::kKeepsStart) start[s] = shared.start[s][threadIdx.x];
            const Poles& pole = states.poles[s];
            if constexpr (kConfig.is_complex) {
                if (may_drift(pole, total)) states.x[s] = from_zero[s].plus(pole.decay_over(total), start[s]);
            } else {
                float relative;
                if (pole.long_memory(total.sum, relative)) states.x[s] = start[s] + (relative * start[s] + from_zero[s]);
            }
        }
    }
    // The sum of a tile's steps, of which each lane adds eight. Phases need the rounding error of the sum as well.
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
                                   __shfl_xor_sync(0xffffffffu, total.residual, distance)});
            });
        } else {
#pragma unroll
            for (int distance = 4; distance > 0; distance /= 2)  // pairwise: shorter than a chain of additions
#pragma unroll
                for (int i = 0; i < distance; ++i) step[i] += step[i + distance];
            total.sum = Lanes::sum(step[0]);
        }
        return total;
    }
    __device__ __forceinline__ static bool may_drift(const Poles& pole, const ExactSum& total) {
        // A second pass of complex states is expensive, and inputs and outputs of 16 bits are rounded by up to 4e-3.
        return pole.may_drift(total.sum, kTokens, kConfig.is_complex && kConfig.is_narrow ? 3e-4f : 5e-6f);
    }
    // Models order states by decay, so the first state of a lane decays slowest, and often it alone needs anchoring.
    template <Pass kPass>
    __device__ __forceinline__ void advance_tile(States& states, bool is_first, const ExactSum& total) {
        if constexpr (!Poles::kFollowsSteps) {
            advance<kPass, 0>(states, is_first, {});
        } else if constexpr (kPass == Pass::any) {
            advance<kPass, kStates>(states, is_first, total);
        } else {
            const bool first = may_drift(states.poles[0], total);
            bool others = kConfig.is_complex && first;
            if constexpr (kConfig.is_complex) {
#pragma unroll
                for (int s = 1; s < kStates; ++s) others |= may_drift(states.poles[s], total);
            } else {
                others = may_drift(states.slowest, total);
            }
            if (__any_sync(0xffffffffu, others))
                advance<kPass, kStates>(states, is_first, total);
            else if (kConfig.is_complex || !__any_sync(0xffffffffu, first))
                advance<kPass, 0>(states, is_first, total);
            else
                advance<kPass, 1>(states, is_first, total);
        }
    }

    // States that do not stay in registers between tiles are in args.running.
    __device__ __forceinline__ void run(const SelectivePlace& place, int first_chunk) {
        if (threadIdx.x == 0) shared.place = place;
        elements.begin(place);
        elements.begin_outputs(place);
        coefficients.begin(place);
        __syncthreads();
        const int length = place.length, plain = coefficients.may_be_plain() ? elements.plain() : 0;
        const bool both_vary = in.B.varies && in.C.varies && kTransition != Transition::rglru,
                   in_registers = kOnePass || in.state_size <= kGroup;
        const auto is_plain_along_tokens = [&](int tile) { return tile < plain && args.along_tokens; };
        States states;
#pragma unroll 1
        for (int first = 0; first < in.state_size; first += kGroup) {
            load_states(states, in.initial_state, segment_row(), first);
            if (!in_registers) store_states(states, args.running, segment_row(), first);
        }
        load_poles(states, 0);
        int tile = -kTokens, first = kOnePass ? 0 : in.state_size;  // the first iteration only loads
#pragma unroll 1
        for (;;) {
            const bool last_pass = kOnePass || first + kGroup >= in.state_size;
            const int next_tile = last_pass ? tile + kTokens : tile, next_first = last_pass ? 0 : first + kGroup;
            ExactSum total;
            if (tile >= 0) {
                cp_async_wait<0>();
                with_tile_kind<kConfig.is_narrow>(tile < plain, args.along_tokens, [&](auto kind) {
                    if (first == 0) elements.prepare(kind, tile);
                    if constexpr (kind.is_plain_along_tokens) {
                        // Each warp prepared the channels whose states it has, so a warp barrier is enough to sum their steps.
                        __syncwarp();
                        total = total_of_steps();
                    }
                    // Other warps may still read B and C of the previous tile. (Along tokens, each warp has rows of elements of
                    // its own.)
                    if (kind.along_tokens(args.along_tokens)) __syncthreads();
                    coefficients.put(kind, tile, first);
                    if (last_pass) elements.load_z(kind, tile);
                });
            }
            cp_async_fence();
            if (next_tile < length)
                with_tile_kind<kConfig.is_narrow>(next_tile < plain, args.along_tokens, [&](auto kind) {
                    if (next_first == 0) elements.load(kind, next_tile);
                    coefficients.load(kind, next_tile, next_first);
                });
            cp_async_fence();
            if (tile >= 0) {
                if (!in_registers) {
                    load_poles(states, first);
                    load_states(states, args.running, segment_row(), first);
                }
                if (args.states != nullptr && tile % kStateChunk == 0)
                    keep_states(states, first_chunk + tile / kStateChunk, first);
                __syncthreads();
                if (!is_plain_along_tokens(tile)) total = total_of_steps();
                if (!both_vary)
                    advance_tile<Pass::any>(states, first == 0, total);
                else if (kOnePass || first == 0)
                    advance_tile<Pass::first>(states, true, total);
                else if constexpr (!kOnePass)
                    advance_tile<Pass::later>(states, false, total);
                if (!in_registers) store_states(states, args.running, segment_row(), first);
                if (last_pass) cp_async_wait<1>();  // for z
                with_tile_kind<kConfig.is_narrow>(tile < plain, args.along_tokens, [&](auto kind) {
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
        if (!is_last_segment()) return;
        if (in_registers) return store_states(states, args.last_state, shared.place.sequence, 0);
        if (args.running == args.last_state) return;
#pragma unroll 1
        for (int first = 0; first < in.state_size; first += kGroup) {
            load_states(states, args.running, segment_row(), first);
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
    const int inside = block % blocks_per_span * kChannels, segment = blockIdx.y;
    const Span whole = span_of(in.cu_seqlens, sequence, in.length);
    if (segment >= segment_count(args.segments, whole.length)) return;
    const Span span = segment_span(args.segments, whole, segment);
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
          {args, shared, Block::Elements::Own::for_thread(thread, args.along_tokens)},
          {args, shared},
          Block::Lanes::lane(thread),
          Block::Lanes::channel(thread)}
        .run(place, args.states == nullptr ? 0 : first_chunk(in, sequence) + segment * (args.segments.length / kStateChunk));
}

}  // namespace gdn_cuda::scan
