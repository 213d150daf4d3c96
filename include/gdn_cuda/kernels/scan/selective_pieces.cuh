// scan/selective_pieces: the map of each segment of a split sequence, from the state before the segment to the state after it
// (before scan/selective_forward), or in reverse from the gradient of the state after it to that before it (before
// scan/selective_backward):
//     x_t = Ā_t x_{t−1} + (B̄u)_t                 from x = 0, and the product of all Ā_t
//     e_t = conj(Ā_t) (e_{t+1} + conj(C_t) g_t)  from e = 0, and the product of all conj(Ā_t)
//
// A block of 128 threads has 16 or 32 channels of a segment, and a group of their states. It iterates over tiles as
// selective_forward does: each thread prepares eight elements in shared memory, and a channel's states are spread over a few
// lanes. Loads of the next tile are in flight meanwhile. The segment computed last needs no map, so it has no block.
//
// Equal decays near one round in the same direction, so a product of many of them drifts. Exponential decays over a segment are
// therefore computed from the sum of its steps; for other decays the product's difference from 1 is kept as well. In the same
// way each tile is computed from a zero state, and the state before it is multiplied by its decay over the tile.
//
// Bound: the special function unit, 16 exponentials a clock and SM, of which each state and token takes one. The simplest
// configuration takes 4.9 instructions for each state and token.
//
// Before scan/selective_summary, states that decay to nothing over the segments between theirs and the end that the summary is
// for are not computed: a warp computes all states of its channels, or the first of each lane, or none, and a block without any
// exits at once. Blocks of the segments nearest to that end start first, and publish their sums of steps; a block reads those
// that are there. What is skipped depends on timing, the summary does not: it stops before. For
// 8192 channels of 131072 tokens with Mamba's initial steps that takes 1.49 ms on an H200, 2.54 if blocks skip as a whole.
#pragma once

#include <gdn_cuda/kernels/common/vector.cuh>
#include <gdn_cuda/kernels/scan/discretization_gradients.cuh>
#include <gdn_cuda/kernels/scan/selective/coefficients.cuh>
#include <gdn_cuda/kernels/scan/selective/elements.cuh>
#include <gdn_cuda/kernels/scan/selective/segment.cuh>
#include <gdn_cuda/kernels/scan/selective_pieces_plan.cuh>

namespace gdn_cuda::scan {

// A product of factors 1 + x, and the same product minus 1, which is accurate near 1.
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
    using Elements = SelectiveElements<Shared, SelectivePiecesArgs>;
    using CoefficientTile = SelectiveCoefficients<Shared, SelectivePiecesArgs, false>;
    static constexpr int kTokens = kConfig.tokens(), kStates = kConfig.states;
    static constexpr int kLanes = kConfig.lanes, kGroup = kConfig.group(), kParts = kConfig.parts();
    using Lanes = ChannelLanes<kLanes>;
    static constexpr Transition kTransition = kConfig.transition;
    using Number = scan::Number<kConfig.is_complex>;
    using Poles = Pole<kTransition, kConfig.is_complex>;
    using Gradient = PoleGradient<kTransition, kConfig.is_complex>;

    const SelectivePiecesArgs& args;
    const SelectiveInputs& in;
    Shared& shared;
    Elements elements;
    CoefficientTile coefficients;
    int segment, nearer;  // nearer: how many segments are between this one and the result of scan/selective_summary
    int first;            // of the block's states
    int lane, channel;    // where this thread's states are
    int live = kStates;   // how many states of each lane the warp computes: all, the first, or none

    // ---- The tile

    __device__ __forceinline__ const float* row(int rows, int token) const {
        return elements.row(rows, channel) + swizzled<kConfig.channels()>(channel, token);
    }
    __device__ __forceinline__ bool takes_coefficients() const {
        return in.B.varies && static_cast<int>(threadIdx.x) < Shared::kVectorsOfB;
    }
    // Along tokens, each warp has the elements of its own channels.
    __device__ __forceinline__ bool takes_elements() const { return !kConfig.skips() || live > 0 || !args.along_tokens; }
    // Starts the loads of a tile. `plain`: first token after the plain tiles.
    __device__ __forceinline__ void load(int tile, int plain) const {
        with_tile_kind<false>(tile < plain, args.along_tokens, [&](auto kind) {
            if (takes_elements()) {
                elements.load(kind, tile);
                elements.load_z(kind, tile);
            }
            if (takes_coefficients()) coefficients.load(kind, tile, first);
        });
        cp_async_fence();
    }
    __device__ __forceinline__ void prepare(int tile, int plain) const {
        cp_async_wait<0>();
        with_tile_kind<false>(tile < plain, args.along_tokens, [&](auto kind) {
            if (takes_elements()) {
                elements.prepare(kind, tile);
                if (args.reverse) gate(kind, tile);
            }
            // Other warps may still read B of the previous tile. (Along tokens, each warp has rows of elements of its own.)
            if (kind.along_tokens(args.along_tokens)) __syncthreads();
            if (takes_coefficients()) coefficients.put(kind, tile, first);
        });
    }
    // In reverse the inputs are gradients of `out`. Times silu(z), and times 2 for complex states, they are the gradients of Σ
    // C x.
    template <class Kind>
    __device__ __forceinline__ void gate(Kind kind, int tile) const {
        if (kParts == 1 && in.z.data == nullptr) return;
        float factors[8];
#pragma unroll
        for (float& x : factors) x = kParts;
        if (in.z.data != nullptr) {
            float z[8];
            elements.loaded(kind, Elements::z, Elements::padding_z, elements.addresses[Elements::at_z], in.z, tile)
                .to_floats(args.io, z);
            const int count = kind.is_plain || tile < elements.aligned ? 8 : elements.left(tile);
#pragma unroll
            for (int i = 0; i < 8; ++i)
                if (i < count) factors[i] *= silu_fast(z[i]);
        }
        const auto& own = elements.own;
        float* inputs = elements.row(Elements::kInput, own.channel) + swizzled<kConfig.channels()>(own.channel, own.token);
        const int stride = kind.along_tokens(args.along_tokens) ? 1 : Shared::kPitch;
#pragma unroll
        for (int i = 0; i < 8; ++i) inputs[i * stride] *= factors[i];
    }

    // ---- The states of a lane

    struct States {
        Poles poles[kStates];
        Number x[kStates];
        ExactSum steps;
        FactorProduct<Number> factors[kTransition == Transition::bilinear ? kStates : 1];  // s7: one for all states
    };

    // Consecutive states are on consecutive lanes of the channel. Calls `call` with the index of each state that exists, and
    // its index in N.
    template <class F>
    __device__ __forceinline__ void each_state(const F& call) const {
#pragma unroll
        for (int s = 0; s < kStates; ++s) {
            const int n = first + s * kLanes + lane;
            if (channel < shared.place.channels && n < in.state_size) call(s, n);
        }
    }
    __device__ __forceinline__ Number constant(const Coefficients& from, int n) const {
        return constant_number<Number>(from, shared.place.channel + channel, n);
    }

    // Ā over steps that sum to `steps`.
    __device__ __forceinline__ static Number decay_over(const Poles& pole, const ExactSum& steps) {
        if constexpr (kConfig.is_complex) {
            return pole.decay_over(steps);
        } else {
            float relative;
            if (pole.long_memory(steps.sum, relative)) return 1.f + relative;
            return pole.step({steps.sum, 0.f, 0.f}, 0.f).decay;
        }
    }
    __device__ __forceinline__ Number product(const States& states, int s) const {
        if constexpr (Poles::kFollowsSteps) return decay_over(states.poles[s], states.steps);
        return states.factors[kTransition == Transition::bilinear ? s : 0].product();
    }
    // The constant B (in reverse, C), and for rglru the gain that multiplies its output.
    __device__ __forceinline__ Number drive(int n) const {
        Number x = one_of(Number{});
        if (!in.B.varies && (kTransition != Transition::rglru || args.reverse)) x = constant(in.B, n);
        if (args.gain.data != nullptr) x = x * constant(args.gain, n);
        return args.reverse ? conjugate(x) : x;
    }
    __device__ __forceinline__ void store(const States& states) const {
        const i64 row =
            (static_cast<i64>(segment) * in.sequences + shared.place.sequence) * in.dim + shared.place.channel + channel;
        each_state([&](int s, int n) {
            const i64 at = row * in.state_size + n;
            const Number decayed = product(states, s);
            static_cast<Number*>(args.maps.ends)[at] = states.x[s] * drive(n);
            static_cast<Number*>(args.maps.products)[at] = args.reverse ? conjugate(decayed) : decayed;
        });
    }

    // ---- What the summary does not need

    static constexpr unsigned kSkipped = 0x7fc05c1b;  // a NaN, in place of a sum of steps

    // Address of this channel's sum of steps in the segment that has so many nearer ones.
    __device__ __forceinline__ volatile float* steps_of(int nearer) const {
        const i64 sequences = in.sequences, other = args.reverse ? nearer : segment + this->nearer - nearer;
        return args.steps + (other * sequences + shared.place.sequence) * in.dim + shared.place.channel + channel;
    }
    __device__ __forceinline__ void publish(float steps) const {
        if (lane == 0 && channel < shared.place.channels) *steps_of(nearer) = steps;
    }
    // Bits of this thread's states that do not decay to nothing over the nearest segments, as far as these are done.
    __device__ __forceinline__ unsigned states_needed() const {
        constexpr int kAtOnce = 8;
        constexpr float kLimit = (kNegligibleDecayLog2 - 2.f) * kLn2;  // beyond the summary's, whose products are rounded
        unsigned needed = 0;
        float rates[kStates] = {}, steps[kAtOnce], sum = 0.f;
        each_state([&](int s, int n) {
            rates[s] = real_part(constant(in.A, n));
            needed |= 1u << s;
        });
        if (needed == 0) return 0;
        const auto read = [&](int begin) {
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) steps[i] = begin + i < nearer ? *steps_of(begin + i) : 0.f;
        };
        const auto skipped = [&](int i) { return __float_as_uint(steps[i]) == kSkipped; };
        read(max(nearer - kAtOnce, 0));
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
            if (skipped(i)) return 0;
#pragma unroll 1
        for (int begin = 0; begin < nearer; begin += kAtOnce) {
            read(begin);
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                if (steps[i] == 0.f) return needed;  // not done
                if (skipped(i)) return 0;
                sum += steps[i];
#pragma unroll
                for (int s = 0; s < kStates; ++s)
                    if (rates[s] * sum < kLimit) needed &= ~(1u << s);
                if (needed == 0) return 0;
            }
        }
        return needed;
    }

    // ---- The recurrence

    // Adds the tile's steps to those of earlier tiles (for s7, multiplies its decays). Each lane reads eight.
    __device__ __forceinline__ ExactSum add_steps(States& states) const {
        static_assert(kLanes * 8 == kTokens);
        if constexpr (kTransition == Transition::bilinear) return {};
        float step[8];
        load_shared(step, row(Elements::kStep, lane * 8));
        const auto shuffled = [](float x, int distance) { return __shfl_xor_sync(0xffffffffu, x, distance); };
        if constexpr (kTransition == Transition::s7) {
            FactorProduct<float> tile;
#pragma unroll
            for (float x : step) tile.times(x);
            Lanes::each_distance([&](int distance) {
                tile.times(FactorProduct<float>{shuffled(tile.whole, distance), shuffled(tile.relative, distance)});
            });
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
        Lanes::each_distance(
            [&](int distance) { tile.add(ExactSum{shuffled(tile.sum, distance), shuffled(tile.residual, distance)}); });
        states.steps.add(tile);
        return tile;
    }
    // Advances the first states of each lane through a tile whose steps sum to `total`.
    template <bool kReverse, int kLive>
    __device__ __forceinline__ void advance(States& states, const ExactSum& total) const {
        Number x[kLive];
#pragma unroll
        for (int s = 0; s < kLive; ++s) x[s] = Poles::kFollowsSteps ? Number{} : states.x[s];
#pragma unroll 1
        for (int i = 0; i < kTokens; i += 4) {
            const int four = kReverse ? kTokens - 4 - i : i;
            float step[4], input[4], size[4] = {};
            load_shared(step, row(Elements::kStep, four));
            load_shared(input, row(Elements::kInput, four));
            if constexpr (has_size(kTransition) && !kReverse) load_shared(size, row(Elements::kSize, four));
#pragma unroll
            for (int s = 0; s < kLive; ++s) {
                float B[4 * kParts];
                load_shared(B, &shared.B.tile[s * kLanes + lane][four * kParts]);
                const Poles& pole = states.poles[s];
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const int t = kReverse ? 3 - j : j;
                    const Step<Number> next = pole.step({step[t], input[t], size[t]}, number_of<Number>(B, t));
                    if constexpr (kReverse)
                        x[s] = Gradient::carried(plus_scaled(x[s], conjugate(number_of<Number>(B, t)), input[t]), next.decay);
                    else
                        x[s] = after<Poles::kRelative>(x[s], next);
                    if constexpr (kTransition == Transition::bilinear) states.factors[s].times(next.decay);
                }
            }
        }
#pragma unroll
        for (int s = 0; s < kLive; ++s) {
            float relative;
            if constexpr (!Poles::kFollowsSteps) {
                states.x[s] = x[s];
            } else if constexpr (kConfig.is_complex) {
                const Number decay = decay_over(states.poles[s], total);
                states.x[s] = after_segment(states.x[s], kReverse ? conjugate(decay) : decay, x[s]);
            } else {
                const bool is_long = states.poles[s].long_memory(total.sum, relative);
                states.x[s] = is_long ? states.x[s] + fmaf(relative, states.x[s], x[s])
                                      : after_segment(states.x[s], decay_over(states.poles[s], total), x[s]);
            }
        }
    }

    template <int kLive>
    __device__ __forceinline__ void advance(States& states, const ExactSum& total) const {
        if (args.reverse)
            advance<true, kLive>(states, total);
        else
            advance<false, kLive>(states, total);
    }

    __device__ __forceinline__ void run(const SelectivePlace& place) {
        if (threadIdx.x == 0) shared.place = place;
        elements.begin(place);
        if (in.B.varies) {
            coefficients.begin(place);
        } else {
            float* ones = &shared.B.tile[0][0];
#pragma unroll 1
            for (int i = threadIdx.x; i < kGroup * Shared::kRowPitch; i += Config::kThreads)
                ones[i] = i % kParts == 0 ? 1.f : 0.f;
        }
        __syncthreads();
        States states{};
#pragma unroll
        for (Poles& pole : states.poles) pole = Poles::of(Number{});
        each_state([&](int s, int n) { states.poles[s] = Poles::of(constant(in.A, n)); });
        if constexpr (kConfig.skips()) {
            if (nearer > 0) {
                const unsigned needed = states_needed();
                live = __any_sync(0xffffffffu, needed > 1) ? kStates : __any_sync(0xffffffffu, needed) ? 1 : 0;
            }
            if (!__syncthreads_or(live)) {
                if (args.groups == 1) publish(__uint_as_float(kSkipped));  // groups of states share sums of steps
                return;
            }
        }
        const int plain = !in.B.varies || coefficients.may_be_plain() ? elements.plain() : 0;
        const int tiles = (place.length + kTokens - 1) / kTokens;
        const auto tile = [&](int i) { return (args.reverse ? tiles - 1 - i : i) * kTokens; };
        if (!kConfig.is_summary || tiles > 0) load(tile(0), plain);
#pragma unroll 1
        for (int i = 0; i < tiles; ++i) {
            prepare(tile(i), plain);
            if (i + 1 < tiles) load(tile(i + 1), plain);
            __syncthreads();
            if (!kConfig.skips() || live > 0) {
                const ExactSum total = add_steps(states);
                if (!kConfig.skips() || live > 1)
                    advance<kStates>(states, total);
                else
                    advance<1>(states, total);
            }
            if (args.along_tokens)
                __syncwarp();
            else
                __syncthreads();
        }
        if (kConfig.skips() && live == 0) return;
        store(states);
        if constexpr (kConfig.skips()) publish(states.steps.sum);
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
    const int sequence = blockIdx.x / blocks / args.groups;
    const Span whole = span_of(in.cu_seqlens, sequence, in.length);
    const int nearer = blockIdx.y, count = segment_count(args.segments, whole.length);
    int segment = nearer + (args.reverse ? 1 : 0);
    if constexpr (kConfig.is_summary) segment = args.reverse ? nearer : count - 1 - nearer;
    const Span span = segment_span(args.segments, whole, segment);
    if (kConfig.is_summary ? nearer >= count : segment >= count - (args.reverse ? 0 : 1)) return;
    const int inside = block % blocks_per_span * kChannels;
    const SelectivePlace place{.channel = block / blocks_per_span * args.span + inside,
                               .channels = min(args.span - inside, kChannels),
                               .sequence = sequence,
                               .batch = in.cu_seqlens.data != nullptr ? 0 : sequence,
                               .length = span.length,
                               .start = span.start};
    using Block = SelectivePieces<kConfig>;
    Block{.args = args,
          .in = in,
          .shared = shared,
          .elements = {args, shared, Block::Elements::Own::for_thread(thread, args.along_tokens)},
          .coefficients = {args, shared},
          .segment = segment,
          .nearer = nearer,
          .first = group * kConfig.group(),
          .lane = Block::Lanes::lane(thread),
          .channel = Block::Lanes::channel(thread)}
        .run(place);
}

}  // namespace gdn_cuda::scan
