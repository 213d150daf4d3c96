// scan/selective_forward: x_t = Ā_t x_{t−1} + (B̄u)_t, out = (Σ_n C x + D u) silu(z), for every channel of every sequence.
//
// A block walks the tokens of a sequence, one tile after the other, with 16 or 32 channels in front of 128 threads. Per tile,
// each thread prepares eight elements, along tokens or along channels as they lie in memory: u and δ become the step and the
// input of the recurrence, in fp32 in shared memory, beside the tile's B and C, which all channels of the block use. Then a
// channel's states are on a few neighbouring lanes, some on each; a lane takes its states through the tile token by token, four
// tokens' Σ C x at a time go to shared memory, and the threads that prepared the elements add them up and store them. What the
// next tile needs from memory is in flight meanwhile. States beyond one such group take further passes over the tile.
//
// Bound: the special function unit, one exponential a state and token at 16 a clock and multiprocessor; the other instructions
// of a state and token, about nine, take as long on four schedulers. docs/benchmarks/scan.md has the share reached.
#pragma once

#include <gdn_cuda/kernels/common/varlen.cuh>
#include <gdn_cuda/kernels/scan/discretization.cuh>
#include <gdn_cuda/kernels/scan/eight.cuh>
#include <gdn_cuda/kernels/scan/selective_forward_plan.cuh>

namespace gdn_cuda::scan {

// The number of the first chunk of a sequence.
__device__ __forceinline__ int first_chunk(const SelectiveInputs& in, int sequence) {
    if (in.cu_seqlens.data == nullptr) return sequence * static_cast<int>(ceil_div(in.tokens, kStateChunk));
    int chunk = 0;
    for (int i = 0; i < sequence; ++i)
        chunk += static_cast<int>(ceil_div(span_of(in.cu_seqlens, i, in.tokens).length, kStateChunk));
    return chunk;
}

// The place of a block: channels of one group of B and C, and a sequence.
struct SelectivePlace {
    int channel, channels;  // the first, and how many of the block's exist
    int sequence, batch;
    Span span;
};

// Eight neighbouring elements of a tile, along tokens or along channels.
template <int kChannels, int kTokens>
struct Elements {
    int channel, token;
    bool along_tokens;

    __device__ __forceinline__ static Elements of_thread(bool along_tokens) {
        constexpr int kRow = kTokens / 8, kColumn = kChannels / 8;
        const int thread = threadIdx.x;
        return along_tokens ? Elements{thread / kRow, thread % kRow * 8, true}
                            : Elements{thread % kColumn * 8, thread / kColumn, false};
    }
    // How many exist, of a tile of so many channels and tokens.
    __device__ __forceinline__ int count(int channels, int tokens) const {
        if (channel >= channels || token >= tokens) return 0;
        return min(along_tokens ? tokens - token : channels - channel, 8);
    }
    __device__ __forceinline__ int channel_of(int i) const { return along_tokens ? channel : channel + i; }
    __device__ __forceinline__ int token_of(int i) const { return along_tokens ? token + i : token; }
};

// Where a tile keeps a token of a channel: eight channels on, rows begin in the same bank, so their tokens are exchanged.
template <int kChannels>
__device__ __forceinline__ int swizzled(int channel, int token) {
    return token ^ (channel / 8 * (256 / kChannels));
}

template <SelectiveForwardConfig kConfig>
struct SelectiveForward {
    using Shared = SelectiveForwardSharedPlan<kConfig>;
    static constexpr int kChannels = kConfig.channels(), kTokens = kConfig.tokens(), kStates = kConfig.states;
    static constexpr int kLanes = kConfig.lanes, kGroup = kConfig.group(), kParts = kConfig.parts();
    static constexpr int kVectors = 2 * kGroup * kParts * kTokens / 8 / SelectiveForwardConfig::kThreads;  // of B and C
    static constexpr int kNumbers = kStates * kParts;
    static constexpr Transition kTransition = kConfig.transition;
    using Own = Elements<kChannels, kTokens>;
    using Number = scan::Number<kConfig.is_complex>;
    using Poles = Pole<kTransition, kConfig.is_complex>;

    const SelectiveForwardArgs& args;
    const SelectiveInputs& in;
    Shared& shared;
    SelectivePlace place;
    Own own;
    int lane, channel;  // of the walk

    // What a tile needs from memory.
    struct InFlight {
        Eight u, delta, z, delta_a;
    };
    Eight coefficients[kVectors];

    __device__ __forceinline__ i64 offset_of(const SelectiveElements& x, int tile) const {
        return place.batch * x.batch + (place.channel + own.channel) * x.channel + (place.span.start + tile + own.token) * x.token;
    }
    __device__ __forceinline__ void load(Eight& to, const SelectiveElements& x, int tile) const {
        if (x.data == nullptr) return;
        const int count = own.count(place.channels, place.span.length - tile);
        to.load({x.data, in.io}, offset_of(x, tile), own.along_tokens ? x.token : x.channel, count);
    }
    __device__ __forceinline__ void load_elements(InFlight& tile, int token) const {
        load(tile.u, in.u, token);
        load(tile.delta, in.delta, token);
        load(tile.delta_a, in.delta_a, token);
    }

    // B or C of a tile, states from `first` on: eight real numbers, along tokens or along states as they lie in memory.
    struct CoefficientPlace {
        const SelectiveCoefficients* from;
        float (*to)[kGroup * kParts];
        int state, token;
        bool along_tokens;
    };
    __device__ __forceinline__ CoefficientPlace coefficient_place(int i) const {
        constexpr int kOfB = kGroup * kParts * kTokens / 8, kRow = kTokens * kParts / 8, kColumn = kGroup * kParts / 8;
        const int vector = threadIdx.x + i * SelectiveForwardConfig::kThreads, of = vector % kOfB;
        const bool is_B = vector < kOfB;
        const SelectiveCoefficients& from = is_B ? in.B : in.C;
        auto* to = is_B ? shared.B : shared.C;
        if (from.state == kParts) return {&from, to, of % kColumn * (8 / kParts), of / kColumn, false};
        return {&from, to, of / kRow, of % kRow * (8 / kParts), true};
    }
    __device__ __forceinline__ void load_coefficients(int token, int first) {
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            const CoefficientPlace at = coefficient_place(i);
            const SelectiveCoefficients& from = *at.from;
            if (!from.varies) continue;
            const int states = in.states - first - at.state, tokens = place.span.length - token - at.token;
            const int count = states <= 0 || tokens <= 0 ? 0 : min((at.along_tokens ? tokens : states) * kParts, 8);
            const i64 offset = place.batch * from.batch + place.channel / from.channels_per_group * from.group +
                               (first + at.state) * from.state + (place.span.start + token + at.token) * from.token;
            coefficients[i].template load<kParts>(from.values, offset, at.along_tokens ? from.token : from.state, count);
        }
    }
    __device__ __forceinline__ void publish_coefficients() const {
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            const CoefficientPlace at = coefficient_place(i);
            if (!at.from->varies) continue;
            float x[8];
            coefficients[i].to_floats(at.from->values.type, x);
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                const int number = j / kParts;
                at.to[at.along_tokens ? at.token + number : at.token]
                     [(at.along_tokens ? at.state : at.state + number) * kParts + j % kParts] = x[j];
            }
        }
    }

    __device__ __forceinline__ void publish_elements(const InFlight& tile, int token) {
        float u[8], delta[8], delta_a[8];
        tile.u.to_floats(in.io, u);
        tile.delta.to_floats(in.io, delta);
        if (in.delta_a.data != nullptr) tile.delta_a.to_floats(in.io, delta_a);
        const int count = own.count(place.channels, place.span.length - token);
        float step[8], input[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            float size = delta[i];
            if (in.delta_bias != nullptr) size += shared.bias[own.channel_of(i)];
            if (in.softplus) size = softplus_fast(size);
            step[i] = in.delta_a.data != nullptr ? delta_a[i] : size;
            input[i] = u[i];
            if constexpr (kTransition == Transition::exponential)
                if (in.input_times_delta) input[i] *= size;
            if constexpr (kTransition == Transition::s7) step[i] = -1.f / fmaf(size, size, 0.5f);
            if constexpr (kTransition == Transition::rglru) step[i] = size;
            if (i >= count) step[i] = input[i] = size = 0.f;  // leaves the states as they are
            delta[i] = size;
        }
        put(shared.step, step);
        put(shared.input, input);
        if constexpr (has_size(kTransition)) put(shared.size, delta);
    }
    __device__ __forceinline__ void put(float (*tile)[Shared::kPitch], const float (&x)[8]) const {
        const int token = swizzled<kChannels>(own.channel, own.token);
        if (own.along_tokens) {
            auto* to = reinterpret_cast<float4*>(&tile[own.channel][token]);
            to[0] = {x[0], x[1], x[2], x[3]};
            to[1] = {x[4], x[5], x[6], x[7]};
        } else {
#pragma unroll
            for (int i = 0; i < 8; ++i) tile[own.channel + i][token] = x[i];
        }
    }

    // ---- The states of a lane

    struct States {
        Poles poles[kStates];
        Number x[kStates], B[kStates], C[kStates];  // B and C where they are constant
    };

    __device__ __forceinline__ i64 state_at(i64 row, int first) const {
        return (row * in.channels + place.channel + channel) * in.states + first + lane * kStates;
    }
    // Calls with the index of each state that exists.
    template <class F>
    __device__ __forceinline__ void each_state(int first, const F& call) const {
#pragma unroll
        for (int s = 0; s < kStates; ++s)
            if (channel < place.channels && first + lane * kStates + s < in.states) call(s);
    }
    __device__ __forceinline__ void load_poles(States& states, int first) const {
#pragma unroll
        for (int s = 0; s < kStates; ++s) states.poles[s] = Poles::of(Number{}), states.B[s] = states.C[s] = Number{};
        const i64 c = place.channel + channel;
        each_state(first, [&](int s) {
            const int n = first + lane * kStates + s;
            states.poles[s] = Poles::of(static_cast<const Number*>(in.A)[c * in.A_channel + n * in.A_state]);
            if (!in.B.varies) states.B[s] = static_cast<const Number*>(in.B.values.data)[c * in.B.group + n * in.B.state];
            if (!in.C.varies) states.C[s] = static_cast<const Number*>(in.C.values.data)[c * in.C.group + n * in.C.state];
        });
    }
    __device__ __forceinline__ void load_states(States& states, const void* from, i64 row, int first) const {
#pragma unroll
        for (Number& x : states.x) x = Number{};
        if (from == nullptr) return;
        const Number* x = static_cast<const Number*>(from) + state_at(row, first);
        each_state(first, [&](int s) { states.x[s] = x[s]; });
    }
    __device__ __forceinline__ void store_states(const States& states, void* to, i64 row, int first) const {
        Number* x = static_cast<Number*>(to) + state_at(row, first);
        each_state(first, [&](int s) { x[s] = states.x[s]; });
    }

    // ---- The recurrence

    template <int kCount>
    __device__ __forceinline__ static void load_shared(float (&to)[kCount], const float* from) {
        static_assert(kCount % 2 == 0);
        if constexpr (kCount % 4 == 0) {
#pragma unroll
            for (int i = 0; i < kCount; i += 4) {
                const float4 x = *reinterpret_cast<const float4*>(from + i);
                to[i] = x.x, to[i + 1] = x.y, to[i + 2] = x.z, to[i + 3] = x.w;
            }
        } else {
#pragma unroll
            for (int i = 0; i < kCount; i += 2) {
                const float2 x = *reinterpret_cast<const float2*>(from + i);
                to[i] = x.x, to[i + 1] = x.y;
            }
        }
    }
    __device__ __forceinline__ static Number number(const float (&x)[kNumbers], int s) {
        if constexpr (kConfig.is_complex)
            return Number{x[2 * s], x[2 * s + 1]};
        else
            return x[s];
    }

    // Takes the states through the tile. kTiles: B and C both vary.
    template <bool kTiles>
    __device__ __forceinline__ void walk(States& states, bool first_pass) {
        Number start[kStates], from_zero[kStates];  // from_zero: the tile's own part of the states
#pragma unroll
        for (int s = 0; s < kStates; ++s) start[s] = states.x[s], from_zero[s] = Number{};
        float total = 0.f;
        float* partial = &shared.partial[lane][channel * Shared::kPitch];
#pragma unroll 1
        for (int t = 0; t < kTokens; t += 4) {
            const int token = swizzled<kChannels>(channel, t);
            float step[4], input[4], size[4] = {}, y[4];
            load_shared(step, &shared.step[channel][token]);
            load_shared(input, &shared.input[channel][token]);
            if constexpr (has_size(kTransition)) load_shared(size, &shared.size[channel][token]);
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                float B_row[kNumbers], C_row[kNumbers];
                load_shared(B_row, &shared.B[t + j][lane * kNumbers]);
                load_shared(C_row, &shared.C[t + j][lane * kNumbers]);
                y[j] = 0.f;
#pragma unroll
                for (int s = 0; s < kStates; ++s) {
                    Number B = number(B_row, s), C = number(C_row, s);
                    if constexpr (!kTiles) {
                        if (!in.C.varies) C = states.C[s];
                        if constexpr (kTransition == Transition::rglru) {
                            if (!in.B.varies) C = C * states.B[s];
                        } else if (!in.B.varies) {
                            B = states.B[s];
                        }
                    }
                    const Step<Number> next = states.poles[s].step({step[j], input[j], size[j]}, B);
                    states.x[s] = after<Poles::kRelative>(states.x[s], next);
                    if constexpr (!Poles::kRelative) from_zero[s] = after<false>(from_zero[s], next);
                    y[j] = add_real_product(y[j], C, states.x[s]);
                }
                total += step[j];
            }
            auto* sums = reinterpret_cast<float4*>(partial + token);
            float4 sum{y[0], y[1], y[2], y[3]};
            if (!first_pass) {
                const float4 before = *sums;
                sum = {sum.x + before.x, sum.y + before.y, sum.z + before.z, sum.w + before.w};
            }
            *sums = sum;
        }
        if constexpr (!Poles::kRelative) {
#pragma unroll
            for (int s = 0; s < kStates; ++s) {
                Number relative;
                if (states.poles[s].long_memory(total, relative))
                    states.x[s] = start[s] + (relative * start[s] + from_zero[s]);
            }
        }
    }

    // The outputs of the elements that the thread prepared.
    __device__ __forceinline__ void finish(const Eight& raw_u, int tile) const {
        const int count = own.count(place.channels, place.span.length - tile);
        if (count == 0) return;
        Eight raw_z;
        load(raw_z, in.z, tile);
        float y[8] = {}, u[8];
        const int token = swizzled<kChannels>(own.channel, own.token);
#pragma unroll
        for (int part = 0; part < kLanes; ++part) {
            const float* from = &shared.partial[part][own.channel * Shared::kPitch + token];
            if (own.along_tokens) {
                float x[8];
                load_shared(x, from);
#pragma unroll
                for (int i = 0; i < 8; ++i) y[i] += x[i];
            } else {
#pragma unroll
                for (int i = 0; i < 8; ++i) y[i] += from[i * Shared::kPitch];
            }
        }
        if constexpr (kConfig.is_complex)
#pragma unroll
            for (int i = 0; i < 8; ++i) y[i] *= 2.f;
        if (in.D != nullptr) {
            raw_u.to_floats(in.io, u);
#pragma unroll
            for (int i = 0; i < 8; ++i) y[i] = fmaf(shared.D[own.channel_of(i)], u[i], y[i]);
        }
        if (in.z.data != nullptr) {
            float z[8];
            raw_z.to_floats(in.io, z);
#pragma unroll
            for (int i = 0; i < 8; ++i) y[i] *= silu_fast(z[i]);
        }
        Eight::of(in.io, y).store(args.out.data, in.io, offset_of(args.out, tile),
                                  own.along_tokens ? args.out.token : args.out.channel, count);
    }

    __device__ __forceinline__ void prepare_block() {
        if (threadIdx.x < kChannels) {
            const int c = threadIdx.x;
            const bool exists = c < place.channels;
            shared.D[c] = exists && in.D != nullptr ? in.D[(place.channel + c) * in.D_channel] : 0.f;
            shared.bias[c] = exists && in.delta_bias != nullptr ? in.delta_bias[(place.channel + c) * in.bias_channel] : 0.f;
        }
        __syncthreads();
    }

    // States that do not stay in registers from tile to tile are in last_state.
    __device__ __forceinline__ void run(int first_chunk) {
        prepare_block();
        const bool tiles = in.B.varies && in.C.varies && kTransition != Transition::rglru, stays = in.states <= kGroup;
        const int length = place.span.length;
        States states;
        InFlight next;
        load_elements(next, 0);
        load_coefficients(0, 0);
        for (int first = 0; first < in.states; first += kGroup) {
            load_states(states, in.initial_state, place.sequence, first);
            if (!stays) store_states(states, args.last_state, place.sequence, first);
        }
        load_poles(states, 0);
#pragma unroll 1
        for (int tile = 0; tile < length; tile += kTokens) {
            publish_elements(next, tile);
            const Eight u = next.u;
            if (tile + kTokens < length) load_elements(next, tile + kTokens);
#pragma unroll 1
            for (int first = 0; first < in.states; first += kGroup) {
                publish_coefficients();
                const bool last_pass = first + kGroup >= in.states;
                if (!last_pass || tile + kTokens < length)
                    load_coefficients(last_pass ? tile + kTokens : tile, last_pass ? 0 : first + kGroup);
                if (!stays) {
                    load_poles(states, first);
                    load_states(states, args.last_state, place.sequence, first);
                }
                if (args.chunk_states != nullptr && tile % kStateChunk == 0)
                    store_states(states, args.chunk_states, first_chunk + tile / kStateChunk, first);
                __syncthreads();
                if (tiles)
                    walk<true>(states, first == 0);
                else
                    walk<false>(states, first == 0);
                if (!stays) store_states(states, args.last_state, place.sequence, first);
                __syncthreads();
            }
            finish(u, tile);
        }
        if (stays) store_states(states, args.last_state, place.sequence, 0);
    }
};

template <SelectiveForwardConfig kConfig>
__global__ void __launch_bounds__(SelectiveForwardConfig::kThreads)
    selective_forward(const __grid_constant__ SelectiveForwardArgs args) {
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<SelectiveForwardSharedPlan<kConfig>*>(memory);
    const SelectiveInputs& in = args.in;
    const int sequence = blockIdx.y, blocks_per_span = ceil_div(args.channels_per_span, kConfig.channels());
    const int first = blockIdx.x / blocks_per_span * args.channels_per_span, inside = blockIdx.x % blocks_per_span * kConfig.channels();
    const bool packed = in.cu_seqlens.data != nullptr;
    const SelectivePlace place{.channel = first + inside,
                               .channels = min(args.channels_per_span - inside, kConfig.channels()),
                               .sequence = sequence,
                               .batch = packed ? 0 : sequence,
                               .span = span_of(in.cu_seqlens, sequence, in.tokens)};
    using Block = SelectiveForward<kConfig>;
    const int thread = threadIdx.x;
    Block block{.args = args,
                .in = in,
                .shared = shared,
                .place = place,
                .own = Block::Own::of_thread(args.along_tokens),
                .lane = thread % kConfig.lanes,
                .channel = thread / kConfig.lanes};
    block.run(args.chunk_states == nullptr ? 0 : first_chunk(in, sequence));
}

}  // namespace gdn_cuda::scan
