// scan/selective_pieces: what the pieces of sequences do to a state before them, before scan/selective_forward, and in
// reverse to the gradient of a state behind them, before scan/selective_backward, where several blocks share a sequence:
//     x_t = Ā_t x_{t−1} + (B̄u)_t          from 0 on, and the product of all Ā_t
//     e_t = conj(Ā_t) (e_{t+1} + conj(C_t) g_t)  from 0 on, and the product of all conj(Ā_t)
//
// A block of 128 threads has 16 or 32 channels of a piece, and a group of their states. It walks the tokens tile by tile as
// selective_forward does: each thread prepares eight elements in shared memory, then a channel's states are on a few lanes,
// some on each. The elements of the next tile are in flight meanwhile. The piece that is walked last has nothing to write, and
// no block.
//
// Decays near one are all rounded in the same direction, and their product over many tokens would drift. So the product is
// computed from the sum of the steps; where decays are no exponentials, its difference from 1 is kept as well. In the same way
// the state before a tile is taken through it, and the tile itself is walked from 0.
//
// Bound: the special function unit, which has 16 exponentials a clock and multiprocessor; one a state and token. The plainest
// configuration takes 4.9 instructions for it.
#pragma once

#include <gdn_cuda/kernels/common/vector.cuh>
#include <gdn_cuda/kernels/scan/discretization_gradients.cuh>
#include <gdn_cuda/kernels/scan/selective/coefficients.cuh>
#include <gdn_cuda/kernels/scan/selective/elements.cuh>
#include <gdn_cuda/kernels/scan/selective/segment.cuh>
#include <gdn_cuda/kernels/scan/selective_pieces_plan.cuh>

namespace gdn_cuda::scan {

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
    int piece, first;   // the first of the states
    int lane, channel;  // of the states

    // ---- The tile

    __device__ __forceinline__ const float* row(int rows, int token) const {
        return elements.row(rows, channel) + swizzled<kConfig.channels()>(channel, token);
    }
    __device__ __forceinline__ bool takes_coefficients() const {
        return in.B.varies && static_cast<int>(threadIdx.x) < Shared::kVectorsOfB;
    }
    // What it needs from memory. `plain`: the end of the plain tiles.
    __device__ __forceinline__ void load(int tile, int plain) const {
        of_kind<false>(tile < plain, args.along_tokens, [&](auto kind) {
            elements.load(kind, tile);
            elements.load_z(kind, tile);
            if (takes_coefficients()) coefficients.load(kind, tile, first);
        });
        cp_async_fence();
    }
    __device__ __forceinline__ void prepare(int tile, int plain) const {
        cp_async_wait<0>();
        of_kind<false>(tile < plain, args.along_tokens, [&](auto kind) {
            elements.prepare(kind, tile);
            if (args.reverse) gate(kind, tile);
            // Others may still walk the tile before; along tokens, each of them in its own rows of elements.
            if (kind.along_tokens(args.along_tokens)) __syncthreads();
            if (takes_coefficients()) coefficients.put(kind, tile, first);
        });
    }
    // In reverse the inputs are gradients of `out`: multiplied by silu(z), and by 2 for complex states, those of Σ C x.
    template <class Kind>
    __device__ __forceinline__ void gate(Kind kind, int tile) const {
        if (kParts == 1 && in.z.data == nullptr) return;
        float factors[8];
#pragma unroll
        for (float& x : factors) x = kParts;
        if (in.z.data != nullptr) {
            float z[8];
            elements.settled(kind, Elements::z, Elements::behind_z, elements.addresses[Elements::at_z], in.z, tile)
                .to_floats(args.io, z);
            const int count = kind.is_plain || tile < elements.aligned ? 8 : elements.left(tile);
#pragma unroll
            for (int i = 0; i < 8; ++i)
                if (i < count) factors[i] *= silu_fast(z[i]);
        }
        const auto& own = elements.own;
        float* inputs = elements.row(Elements::kInput, own.channel) + swizzled<kConfig.channels()>(own.channel, own.token);
        const int apart = kind.along_tokens(args.along_tokens) ? 1 : Shared::kPitch;
#pragma unroll
        for (int i = 0; i < 8; ++i) inputs[i * apart] *= factors[i];
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
            if (channel < shared.place.channels && n < in.state_size) call(s, n);
        }
    }
    __device__ __forceinline__ Number constant(const Coefficients& from, int n) const {
        return constant_number<Number>(from, shared.place.channel + channel, n);
    }

    // Ā of steps that sum to `steps`.
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
    // B or C where it is constant, and what else the output of rglru has as a factor.
    __device__ __forceinline__ Number drive(int n) const {
        Number x = one_of(Number{});
        if (!in.B.varies && (kTransition != Transition::rglru || args.reverse)) x = constant(in.B, n);
        if (args.gain.data != nullptr) x = x * constant(args.gain, n);
        return args.reverse ? conjugate(x) : x;
    }
    __device__ __forceinline__ void store(const States& states) const {
        const i64 row =
            (static_cast<i64>(piece) * in.sequences + shared.place.sequence) * in.dim + shared.place.channel + channel;
        each_state([&](int s, int n) {
            const i64 at = row * in.state_size + n;
            const Number decayed = product(states, s);
            static_cast<Number*>(args.maps.ends)[at] = states.x[s] * drive(n);
            static_cast<Number*>(args.maps.products)[at] = args.reverse ? conjugate(decayed) : decayed;
        });
    }

    // ---- The recurrence

    // Adds the tile's steps to those before, or for s7 its decays. Each lane takes eight, which makes a tile.
    __device__ __forceinline__ ExactSum add_steps(States& states) const {
        static_assert(kLanes * 8 == kTokens);
        if constexpr (kTransition == Transition::bilinear) return {};
        float step[8];
        load_shared(step, row(Elements::kStep, lane * 8));
        const auto of = [](float x, int distance) { return __shfl_xor_sync(0xffffffffu, x, distance); };
        if constexpr (kTransition == Transition::s7) {
            FactorProduct<float> tile;
#pragma unroll
            for (float x : step) tile.times(x);
            Lanes::each_distance(
                [&](int distance) { tile.times(FactorProduct<float>{of(tile.whole, distance), of(tile.relative, distance)}); });
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
        Lanes::each_distance([&](int distance) { tile.add(ExactSum{of(tile.sum, distance), of(tile.rest, distance)}); });
        states.steps.add(tile);
        return tile;
    }
    // Takes the states through a tile whose steps sum to `total`.
    template <bool kReverse>
    __device__ __forceinline__ void walk(States& states, const ExactSum& total) const {
        Number x[kStates];
#pragma unroll
        for (int s = 0; s < kStates; ++s) x[s] = Poles::kFollowsSteps ? Number{} : states.x[s];
#pragma unroll 1
        for (int i = 0; i < kTokens; i += 4) {
            const int four = kReverse ? kTokens - 4 - i : i;
            float step[4], input[4], size[4] = {};
            load_shared(step, row(Elements::kStep, four));
            load_shared(input, row(Elements::kInput, four));
            if constexpr (has_size(kTransition) && !kReverse) load_shared(size, row(Elements::kSize, four));
#pragma unroll
            for (int s = 0; s < kStates; ++s) {
                float of_B[4 * kParts];
                load_shared(of_B, &shared.B.tile[s * kLanes + lane][four * kParts]);
                const Poles& pole = states.poles[s];
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const int t = kReverse ? 3 - j : j;
                    const Step<Number> next = pole.step({step[t], input[t], size[t]}, number_of<Number>(of_B, t));
                    if constexpr (kReverse)
                        x[s] =
                            Gradient::carried(plus_scaled(x[s], conjugate(number_of<Number>(of_B, t)), input[t]), next.decay);
                    else
                        x[s] = after<Poles::kRelative>(x[s], next);
                    if constexpr (kTransition == Transition::bilinear) states.factors[s].times(next.decay);
                }
            }
        }
#pragma unroll
        for (int s = 0; s < kStates; ++s) {
            float relative;
            if constexpr (!Poles::kFollowsSteps) {
                states.x[s] = x[s];
            } else if constexpr (kConfig.is_complex) {
                const Number decay = decay_over(states.poles[s], total);
                states.x[s] = through_piece(states.x[s], kReverse ? conjugate(decay) : decay, x[s]);
            } else {
                const bool is_long = states.poles[s].long_memory(total.sum, relative);
                states.x[s] = is_long ? states.x[s] + fmaf(relative, states.x[s], x[s])
                                      : through_piece(states.x[s], decay_over(states.poles[s], total), x[s]);
            }
        }
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
        const int plain = !in.B.varies || coefficients.may_be_plain() ? elements.plain() : 0;
        const int tiles = (place.length + kTokens - 1) / kTokens;
        const auto tile = [&](int i) { return (args.reverse ? tiles - 1 - i : i) * kTokens; };
        load(tile(0), plain);
#pragma unroll 1
        for (int i = 0; i < tiles; ++i) {
            prepare(tile(i), plain);
            if (i + 1 < tiles) load(tile(i + 1), plain);
            __syncthreads();
            const ExactSum total = add_steps(states);
            if (args.reverse)
                walk<true>(states, total);
            else
                walk<false>(states, total);
            if (args.along_tokens)
                __syncwarp();
            else
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
    const Span whole = span_of(in.cu_seqlens, sequence, in.length), span = span_of_piece(args.pieces, whole, piece);
    if (piece >= pieces_of(args.pieces, whole.length) - (args.reverse ? 0 : 1)) return;
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
          .elements = {args, shared, Block::Elements::Own::of_thread(thread, args.along_tokens)},
          .coefficients = {args, shared},
          .piece = piece,
          .first = group * kConfig.group(),
          .lane = Block::Lanes::lane(thread),
          .channel = Block::Lanes::channel(thread)}
        .run(place);
}

}  // namespace gdn_cuda::scan
