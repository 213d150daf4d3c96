// layers/decode_layer: a GDN layer's step between its projections, for one or a few tokens of every sequence; states in pools
// are updated in place.
//
//     q, k, v <- silu(conv(q, k, v))        q, k <- l2 norm        S <- exp(g) S        v' = beta (v - S k)
//     S <- S + v' k^T        o = scale S q        out = o / sqrt(mean(o^2) + epsilon) * weight * silu(z)
//
// With channel_gates, Kimi Delta Attention: S <- S diag(exp(g)), in which a thread computes the decays of a channel or two of
// the value head, and all read their columns' from shared memory, as in gdn/decode; sigmoid(z) in place of silu(z); the
// convolution may have fewer taps, and pools of its own for query, key and value; and the norm may be absent.
//
// A block has a value head of a sequence, or some quarters of its rows of S if few sequences would leave SMs idle. It computes
// the convolution of the head's query and key and of its own rows of the value, then the recurrence, and normalises. The blocks
// of a key head form a cluster, for two reasons: all of them compute query and key, and a block may write that part of the
// convolution's state only after all have read it (they arrive early and wait late); and the blocks of a value head add up
// their sums of squares.
//
// Rows of S are loaded as in gdn/decode: through a ring in shared memory whose loads are in flight during the computation; each
// thread reads only what it copied itself. If a cluster has fewer blocks than a key head has value heads, a block computes
// several heads in sequence and the ring continues from one to the next.
//
// Query, key and value are rounded as causal_conv1d_update rounds them, and the order of summation is that of gdn/decode, so
// states are bitwise those of the separate operators.
//
// Bound: memory, the state read and written once; projections and the convolution's state are 4 % of the bytes (fp32 states of
// 128 x 128). For few sequences: latency of loading the slot, then the state, and of instruction cache misses, so loops are
// kept short rather than unrolled.
#pragma once

#include <gdn_cuda/kernels/common/cp_async_ptx.cuh>
#include <gdn_cuda/kernels/common/dependent_launch.cuh>
#include <gdn_cuda/kernels/common/inverse_root.cuh>
#include <gdn_cuda/kernels/layers/decode_layer/convolution.cuh>
#include <gdn_cuda/kernels/recurrence/channel_loads.cuh>

namespace gdn_cuda::layers {

// Computes the norms of query and key, and their product, for every token; a group of lanes per token.
template <DecodeLayerConfig kConfig>
__device__ __forceinline__ void set_token_products(DecodeLayerSharedPlan<kConfig>& shared, const DecodeLayerArgs& args) {
    using Io = Storage<kConfig.io>;
    constexpr gdn::StateLayout kLayout = kConfig.layout();
    const int lane = threadIdx.x % kLayout.lanes;
#pragma unroll 1
    for (int first = 0; first < args.tokens; first += kConfig.threads() / kLayout.lanes) {  // all lanes of a warp take part
        const int t = min(first + static_cast<int>(threadIdx.x) / kLayout.lanes, args.tokens - 1);
        gdn::RowSlice<Io, kLayout, true, true> query, key;
        query.load(reinterpret_cast<const Io*>(shared.query[t].bytes), lane, kConfig.head_k);
        key.load(reinterpret_cast<const Io*>(shared.key[t].bytes), lane, kConfig.head_k);
        gdn::TokenScalars products{};
        gdn::set_products<kLayout>(products, query, key, args.scale, true);
        shared.products[t] = products;
    }
}

// Loads of state rows in flight: the row steps of the block's heads in sequence, each copied by the threads that will use it.
template <DecodeLayerConfig kConfig>
struct LayerRing {
    using State = Storage<kConfig.state>;
    static constexpr gdn::StateLayout kLayout = kConfig.layout();
    using Slice = gdn::RowSlice<State, kLayout, true, true>;
    static constexpr int kStages = kConfig.stages();

    const DecodeLayerArgs& args;
    DecodeLayerSharedPlan<kConfig>& shared;
    const State* rows;  // the block's rows of head `head`
    int count, head, step = 0, into = 0, from = 0;

    __device__ __forceinline__ void fetch() {
        if (head < args.heads_per_key) {
            const int row = step * kConfig.rows_per_step() + static_cast<int>(threadIdx.x) / kLayout.lanes;
            if (row < count)
#pragma unroll
                for (int i = 0; i < kLayout.vectors(); ++i)
                    cp_async_16(shared.state[into][i][threadIdx.x].bytes,
                                rows + row * static_cast<i64>(kConfig.head_k) + Slice::column(i, threadIdx.x % kLayout.lanes));
            if (++step * kConfig.rows_per_step() >= count) {
                step = 0, head += args.heads_at_once;
                rows += args.heads_at_once * static_cast<i64>(args.dv) * kConfig.head_k;
            }
            into = into + 1 == kStages ? 0 : into + 1;
        }
        cp_async_fence();
    }
    // `resets_columns`: a channel's decay is 0.
    __device__ __forceinline__ void take(Slice& slice, bool exists, bool resets_columns) {
        cp_async_wait<kStages - 1>();
        if (exists) {
            if constexpr (kConfig.channel_gates) {
                if (resets_columns)
#pragma unroll 1
                    for (int i = 0; i < kLayout.vectors(); ++i)
                        gdn::clear_where_zero(reinterpret_cast<State*>(shared.state[from][i][threadIdx.x].bytes),
                                              shared.decays + Slice::column(i, threadIdx.x % kLayout.lanes), kLayout.vector);
            }
#pragma unroll
            for (int i = 0; i < kLayout.vectors(); ++i)
                slice.vectors[i].load(reinterpret_cast<const State*>(shared.state[from][i][threadIdx.x].bytes));
        } else {
            slice.clear();
        }
        from = from + 1 == kStages ? 0 : from + 1;
        fetch();
    }
};

// Runs the recurrence of the block's rows of a head; outputs replace the values. `states_after`: output states from the block's
// first row on.
template <DecodeLayerConfig kConfig>
__device__ __forceinline__ void advance_rows(DecodeLayerSharedPlan<kConfig>& shared, LayerRing<kConfig>& ring, int rows,
                                             typename LayerRing<kConfig>::State* states_after, bool resets_columns) {
    using Io = Storage<kConfig.io>;
    constexpr gdn::StateLayout kLayout = kConfig.layout();
    const DecodeLayerArgs& args = ring.args;
    const int lane = threadIdx.x % kLayout.lanes;

    gdn::RowSlice<Io, kLayout, true, true> query, key;
    gdn::TokenScalars scalars;
    const auto load_query = [&](int t) {
        query.load(reinterpret_cast<const Io*>(shared.query[t].bytes), lane, kConfig.head_k);
    };
    const auto load_vectors = [&](int t) {
        load_query(t);
        key.load(reinterpret_cast<const Io*>(shared.key[t].bytes), lane, kConfig.head_k);
    };
    const auto load_gate = [&](int t) {
        scalars.decay = kConfig.channel_gates ? 1.f : shared.gates[t].decay;
        scalars.beta = shared.gates[t].beta;
    };
    gdn::RowSlice<float, kLayout, true, true> decays;
    if constexpr (kConfig.channel_gates) decays.load(shared.decays, lane, kConfig.head_k);
    if constexpr (kConfig.tokens == 1) {
        load_vectors(0);
        gdn::set_products<kLayout>(scalars, query, key, args.scale, true);
        load_gate(0);
    }
#pragma unroll 1
    for (int row = static_cast<int>(threadIdx.x) / kLayout.lanes, first = 0; first < rows;
         row += kConfig.rows_per_step(), first += kConfig.rows_per_step()) {
        const bool exists = row < rows;
        typename LayerRing<kConfig>::Slice loaded;
        ring.take(loaded, exists, resets_columns);
        float s[kLayout.per_lane];
#pragma unroll
        for (int i = 0; i < kLayout.per_lane; ++i) s[i] = loaded[i];
        if constexpr (kConfig.channel_gates) {
#pragma unroll
            for (int i = 0; i < kLayout.per_lane; ++i) s[i] *= decays[i];
        }
#pragma unroll 1
        for (int t = 0; t < (kConfig.tokens == 1 ? 1 : args.tokens); ++t) {
            if constexpr (kConfig.tokens == 1 && kConfig.state != DType::f32) load_query(t);  // few registers
            if constexpr (kConfig.tokens > 1) {
                load_vectors(t);
                scalars = shared.products[t];
                load_gate(t);
            }
            if (gdn::resets(scalars))
#pragma unroll
                for (float& x : s) x = 0.f;
            const float out = gdn::advance<kLayout>(s, query, key, scalars, exists ? shared.value[t][row] : 0.f);
            __syncwarp();
            if (lane == 0 && exists) shared.value[t][row] = out;
            if (const i64 target = shared.target[t]; exists && target >= 0)
                loaded.store(states_after + target + row * static_cast<i64>(kConfig.head_k), lane, kConfig.head_k, s);
        }
    }
}

// Computes the sums of squares of the block's quarters of a head's outputs and stores them in all blocks of the head. A warp
// has a quarter of a token. fp64, in which no square of an fp32 value overflows or underflows.
template <DecodeLayerConfig kConfig>
__device__ __forceinline__ void add_squares(DecodeLayerSharedPlan<kConfig>& shared, const BlockGroup& group,
                                            const DecodeLayerArgs& args, const LayerPart& part, int buffer) {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int task = static_cast<int>(threadIdx.x) / 32; task < args.tokens * part.quarters; task += kConfig.threads() / 32) {
        const int t = task >> part.quarters_log2(), quarter = task & (part.quarters - 1), first = quarter * part.quarter_rows;
        double sum = 0.;
#pragma unroll 1
        for (int row = lane; row < part.rows_of_quarter(quarter); row += 32) {
            const double o = shared.value[t][first + row];
            sum = fma(o, o, sum);
        }
#pragma unroll 1
        for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
        if (lane < args.parts())
            group.store(shared.squares[buffer][t][part.part * part.quarters + quarter],
                        (part.first_head << args.parts_log2) + lane, sum);
    }
}

// 1 / sqrt(mean(o^2) + epsilon) as a product of two factors, since it may leave fp32's range.
__device__ __forceinline__ float2 inverse_rms(const double (&squares)[kRowQuarters], int dv, float epsilon) {
    constexpr int kMost = 128;  // half the exponent of the largest square
    double sum = 0.;
#pragma unroll
    for (const double square : squares) sum += square;
    const double mean = sum * (1. / dv) + epsilon;
    const int high = __double2hiint(mean), half = max(min(((high >> 20) - 1023) >> 1, kMost), -kMost), quarter = half / 2;
    const float fraction = static_cast<float>(__hiloint2double(high - (half << 21), __double2loint(mean)));  // in 1 ... 4
    const auto power = [](int exponent) { return __int_as_float((127 - exponent) << 23); };
    return {power(quarter), isnan(mean) ? quiet_nan() : inverse_root(fraction) * power(half - quarter)};
}

template <DecodeLayerConfig kConfig>
__device__ __forceinline__ void store_outputs(const DecodeLayerSharedPlan<kConfig>& shared, const DecodeLayerArgs& args,
                                              const LayerPart& part, int buffer, Storage<kConfig.io>* outputs) {
#pragma unroll 1
    for (int t = 0; t < args.tokens; ++t) {
        const bool has_norm = !kConfig.channel_gates || args.norm_weight.data != nullptr;
        const float2 factors = has_norm ? inverse_rms(shared.squares[buffer][t], args.dv, args.epsilon) : float2{1.f, 1.f};
#pragma unroll 1
        for (int row = threadIdx.x; row < part.rows; row += kConfig.threads())
            outputs[t * args.output_token + row] =
                from_float<Storage<kConfig.io>>(shared.value[t][row] * factors.x * factors.y * shared.gain[t][row]);
    }
}

// Computes the gates of a head's tokens and the gains of its outputs; neither depends on a slot. The last threads start, since
// the first ones compute the convolution.
template <DecodeLayerConfig kConfig>
__device__ __forceinline__ void set_gates(DecodeLayerSharedPlan<kConfig>& shared, const LayerChannels<kConfig>& channels,
                                          const LayerPart& part, int head) {
    const DecodeLayerArgs& args = channels.args;
    const int thread = kConfig.threads() - 1 - static_cast<int>(threadIdx.x);
    if constexpr (kConfig.channel_gates) {
        if (thread == 0) shared.gates[0] = {1.f, layer_beta(args, channels.sequence, channels.key_head, head)};
    } else if (thread < args.tokens) {
        shared.gates[thread] = layer_gate(args, channels.sequence, thread, channels.key_head, head);
    }
#pragma unroll 1
    for (int row = thread; row < part.rows; row += kConfig.threads()) {
        if constexpr (kConfig.channel_gates)
            if (args.norm_weight.data == nullptr) {
                shared.gain[0][row] = 1.f;
                continue;
            }
        const auto* z = channels.row(args.z) + (head * args.dv + part.head_row + row);
#pragma unroll 1
        for (int t = 0; t < args.tokens; ++t)
            shared.gain[t][row] = layer_gain(args, to_float(z[t * args.z.token]), part.head_row + row);
    }
}

// The gates of a value head's channels.
template <DecodeLayerConfig kConfig, bool kChannelGates = kConfig.channel_gates>
struct LayerDecays {
    __device__ __forceinline__ LayerDecays(const DecodeLayerArgs&, int, int, int) {}
    __device__ __forceinline__ bool finish(DecodeLayerSharedPlan<kConfig>&) { return false; }
};
template <DecodeLayerConfig kConfig>
struct LayerDecays<kConfig, true> {
    struct Source {  // as ChannelLoads names it
        const Tagged &A_log, &dt_bias;
        const DecodeLayerArgs::Gates& gate;
        const gdn::ChannelGates& channels;
    } source;
    int value_head;
    i64 at;
    gdn::ChannelLoads<kConfig.head_k, kConfig.threads(), 1> loads;

    // Issues the loads.
    __device__ __forceinline__ LayerDecays(const DecodeLayerArgs& args, int sequence, int key_head, int head)
        : source{args.A_log, args.dt_bias, args.a, args.channels},
          value_head(key_head * args.heads_per_key + head),
          at(sequence * args.a.batch + value_head * args.a.head) {
        loads.load(source, value_head, 0, 1, [&](int) { return at; });
    }
    // Stores the decays of the thread's channels, and returns whether one is 0.
    __device__ __forceinline__ bool finish(DecodeLayerSharedPlan<kConfig>& shared) {
        return loads.finish(source, value_head, 1, [&](int) { return at; }, [&](int) { return shared.decays; });
    }
};

// Fills the outputs of a sequence without a state.
template <class Io>
__device__ __forceinline__ void fill_outputs(const DecodeLayerArgs& args, const LayerPart& part, Io* outputs, float x) {
#pragma unroll 1
    for (int head = part.first_head; head < args.heads_per_key; head += args.heads_at_once) {
#pragma unroll 1
        for (int t = 0; t < args.tokens; ++t)
#pragma unroll 1
            for (int row = threadIdx.x; row < part.rows; row += blockDim.x)
                outputs[t * args.output_token + row] = from_float<Io>(x);
        outputs += args.heads_at_once * args.dv;
    }
}

template <DecodeLayerConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.blocks_at_least())
    decode_layer(const __grid_constant__ DecodeLayerArgs args) {
    using Io = Storage<kConfig.io>;
    using State = Storage<kConfig.state>;
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<DecodeLayerSharedPlan<kConfig>*>(memory);
    wait_on_dependent_grids();
    const BlockGroup group(args.heads_at_once * args.parts());
    const int sequence = group.index, key_head = static_cast<int>(blockIdx.y);
    LayerSlots slots;
    slots.load(args, sequence);
    const LayerChannels<kConfig> channels{args, sequence, key_head};
    const LayerPart part(args, group.rank);
    const i64 first_row = (static_cast<i64>(key_head) * args.heads_per_key + part.first_head) * args.dv + part.head_row;
    Io* outputs = static_cast<Io*>(args.output) + sequence * args.output_batch + first_row;
    State* states_after = static_cast<State*>(args.state_out) + first_row * kConfig.head_k;

    LayerRing<kConfig> ring{args, shared, static_cast<const State*>(args.state_in) + first_row * kConfig.head_k, part.rows,
                            part.first_head};
#pragma unroll 1
    for (int head = part.first_head, buffer = 0; head < args.heads_per_key; head += args.heads_at_once, buffer ^= 1) {
        const bool is_first = head == part.first_head;
        LayerConvolution<kConfig> convolution(shared, channels, part, head, is_first);
        convolution.load_inputs();
        LayerDecays<kConfig> decays(args, sequence, key_head, head);
        if (is_first) {
            // Padding or an invalid index, which only the device can detect.
            if (const Place place = slots.place(args); args.slots.data != nullptr && place != Place::run) {
                fill_outputs(args, part, outputs, conv::output_without_state(place));
                return;
            }
        }
        const i64 oldest = convolution.oldest(args, slots);
        convolution.load_history(slots, oldest);  // before the ring's loads, which would delay it
        if (is_first) {
            ring.rows += slots.state * args.state_slot;
#pragma unroll 1
            for (int stage = 0; stage < kConfig.stages(); ++stage) ring.fetch();
            if (const int t = static_cast<int>(threadIdx.x); t < args.tokens)
                shared.target[t] = target_of_token(args, sequence, slots.state, t);
        }
        set_gates(shared, channels, part, head);
        convolution.run(slots, oldest);
        bool resets_columns = decays.finish(shared);
        if (is_first) group.arrive();  // this block has read the convolution's state of query and key
        if constexpr (kConfig.channel_gates)
            resets_columns = __syncthreads_or(resets_columns);
        else
            __syncthreads();
        if (kConfig.tokens > 1 && is_first) {
            set_token_products(shared, args);
            __syncthreads();
        }
        advance_rows(shared, ring, part.rows, states_after, resets_columns);
        __syncthreads();
        if (is_first) group.wait();
        add_squares(shared, group, args, part, buffer);
        if (args.parts_log2 > 0) group.arrive();
        convolution.store_histories(group, slots);
        if (args.parts_log2 > 0)
            group.wait();
        else
            __syncthreads();
        store_outputs(shared, args, part, buffer, outputs);
        outputs += args.heads_at_once * args.dv;
        states_after += args.heads_at_once * static_cast<i64>(args.dv) * kConfig.head_k;
        __syncthreads();  // before the next head's gates and gains
    }
}

}  // namespace gdn_cuda::layers
