// gdn/decode_layer: a layer's step between its projections, for a token or a few of every sequence, states of pools updated in
// place.
//
//     q, k, v <- silu(conv(q, k, v))        q, k <- l2 norm        S <- exp(g) S        v' = beta (v - S k)
//     S <- S + v' k^T        o = scale S q        out = o / sqrt(mean(o^2) + epsilon) * weight * silu(z)
//
// A block has a key head of a sequence, and so all value heads that read it: query and key pass through the convolution once,
// their inputs are read before they are moved, and the norm needs no other block. Rows of S move as in gdn/decode: through a
// ring in shared memory that each thread fills and reads for itself. While the first rows are on their way, all threads compute
// the tokens: channels of the convolution, gates, and what the norm multiplies by. Value heads that have more rows than shared
// memory has room for come in parts, one after the other; the ring runs on.
//
// Query, key and value are rounded as causal_conv1d_update rounds them, and sums are those of gdn/decode, so that states are
// those of the separate operators to the bit.
//
// Bound: memory, by the state's bytes, read and written once, beside which projections and the convolution's state are 4 %
// (fp32 states of 128 x 128). Few sequences: latency, of the slot, of the state's rows and of their passage through one SM.
#pragma once

#include <gdn_cuda/kernels/common/cp_async_ptx.cuh>
#include <gdn_cuda/kernels/conv/rms_norm_row.cuh>
#include <gdn_cuda/kernels/gdn/decode_layer_tokens.cuh>

namespace gdn_cuda::gdn {

// Value heads that a block has at once: `rows` rows from `first_row` on, of the rows of the key head.
struct LayerPart {
    int first_head, heads, first_row, rows;

    __device__ __forceinline__ LayerPart(const DecodeLayerArgs& args, int part)
        : first_head(part * args.part_heads),
          heads(min(args.part_heads, args.heads_per_key - first_head)),
          first_row(first_head * args.dv),
          rows(heads * args.dv) {}
};

// What a thread has of a part's tokens. Only the history waits for a slot.
template <DecodeLayerConfig kConfig>
struct LayerTokens {
    static constexpr int kChannels = 2, kGains = kConfig.tokens == 1 ? 1 : 4;
    using Shared = DecodeLayerSharedPlan<kConfig>;
    using All = LayerChannels<kConfig>;

    LayerChannel<kConfig> channels[kChannels];
    RawGain<kConfig> gains[kGains];
    RawLayerGate gate;

    // Query and key come with the first part.
    __device__ __forceinline__ static int channel_count(const LayerPart& part) {
        return part.rows + (part.first_head == 0 ? All::kPairs : 0);
    }
    __device__ __forceinline__ static int channel_of(const LayerPart& part, int i) {
        return part.first_head == 0 ? i : All::kPairs + part.first_row + i;
    }
    __device__ __forceinline__ void load_channels(const All& all, const LayerPart& part, int first) {
#pragma unroll
        for (int i = 0; i < kChannels; ++i)
            if (const int at = first + i * kConfig.threads() + static_cast<int>(threadIdx.x); at < channel_count(part))
                channels[i].load_inputs(all, channel_of(part, at));
    }
    __device__ __forceinline__ void load_gains(const All& all, const LayerPart& part, int first) {
#pragma unroll
        for (int i = 0; i < kGains; ++i)
            if (const int at = first + i * kConfig.threads() + static_cast<int>(threadIdx.x); at < part.rows * all.args.tokens)
                gains[i].load(all, at / part.rows, part.first_row + at % part.rows);
    }
    __device__ __forceinline__ void load(const All& all, const LayerPart& part) {
        load_channels(all, part, 0);
        load_gains(all, part, 0);
        if (const int at = static_cast<int>(threadIdx.x); at < part.heads * all.args.tokens)
            gate.load(all.args, all.sequence, at / part.heads, all.key_head, part.first_head + at % part.heads);
    }

    __device__ __forceinline__ void run(const All& all, const LayerPart& part, const LayerSlots& slots, Shared& shared) {
        const int channel_end = channel_count(part), gain_end = part.rows * all.args.tokens;
#pragma unroll 1
        for (int first = 0; first < channel_end; first += kChannels * kConfig.threads()) {
            if (first > 0) load_channels(all, part, first);
            const auto each = [&](const auto& run_one) {
#pragma unroll
                for (int i = 0; i < kChannels; ++i)
                    if (const int at = first + i * kConfig.threads() + static_cast<int>(threadIdx.x); at < channel_end)
                        run_one(channels[i], channel_of(part, at));
            };
            each([&](auto& channel, int c) { channel.load_history(all, c, slots); });
            each([&](auto& channel, int c) {
                channel.run(all, c, [&](int t, Storage<kConfig.io> y) { store_channel(shared, part, c, t, y); });
            });
        }
#pragma unroll 1
        for (int first = 0; first < gain_end; first += kGains * kConfig.threads()) {
            if (first > 0) load_gains(all, part, first);
#pragma unroll
            for (int i = 0; i < kGains; ++i)
                if (const int at = first + i * kConfig.threads() + static_cast<int>(threadIdx.x); at < gain_end)
                    shared.gain[at / part.rows][at % part.rows] = gains[i].finish(all.args);
        }
        if (const int at = static_cast<int>(threadIdx.x); at < part.heads * all.args.tokens)
            shared.gates[at / part.heads][at % part.heads] = gate.finish(all.args);
    }
    // By the threads that have read the inputs before.
    __device__ __forceinline__ static void store_histories(const All& all, const LayerPart& part, const LayerSlots& slots) {
#pragma unroll 1
        for (int at = threadIdx.x; at < channel_count(part); at += kConfig.threads())
            store_history(all, channel_of(part, at), slots);
    }

  private:
    __device__ __forceinline__ static void store_channel(Shared& shared, const LayerPart& part, int c, int t,
                                                         Storage<kConfig.io> y) {
        using Io = Storage<kConfig.io>;
        if (c < kConfig.head_k)
            reinterpret_cast<Io*>(shared.query[t].bytes)[c] = y;
        else if (c < All::kPairs)
            reinterpret_cast<Io*>(shared.key[t].bytes)[c - kConfig.head_k] = y;
        else
            shared.value[t][c - All::kPairs - part.first_row] = to_float(y);
    }
};

// Norms of query and key, and their product, of every token: by a group of lanes each.
template <DecodeLayerConfig kConfig>
__device__ __forceinline__ void set_token_products(DecodeLayerSharedPlan<kConfig>& shared, const DecodeLayerArgs& args) {
    using Io = Storage<kConfig.io>;
    constexpr StateLayout kLayout = kConfig.layout();
    const int lane = threadIdx.x % kLayout.lanes;
#pragma unroll 1
    for (int first = 0; first < args.tokens; first += kConfig.threads() / kLayout.lanes) {  // all lanes of a warp take part
        const int t = min(first + static_cast<int>(threadIdx.x) / kLayout.lanes, args.tokens - 1);
        RowSlice<Io, kLayout, true, true> query, key;
        query.load(reinterpret_cast<const Io*>(shared.query[t].bytes), lane, kConfig.head_k);
        key.load(reinterpret_cast<const Io*>(shared.key[t].bytes), lane, kConfig.head_k);
        TokenScalars products{};
        set_products<kLayout>(products, query, key, args.scale, true);
        shared.products[t] = products;
    }
}

// Rows of the state on their way: steps of all parts in turn, each copied by the threads that will use it.
template <DecodeLayerConfig kConfig>
struct LayerRing {
    using State = Storage<kConfig.state>;
    static constexpr StateLayout kLayout = kConfig.layout();
    using Slice = RowSlice<State, kLayout, true, true>;
    static constexpr int kStages = kConfig.stages();

    const DecodeLayerArgs& args;
    DecodeLayerSharedPlan<kConfig>& shared;
    const State* rows;  // of the key head
    int parts, part = 0, step = 0, into = 0, from = 0;

    __device__ __forceinline__ void fetch() {
        if (part < parts) {
            const LayerPart now(args, part);
            const int row = step * kConfig.rows_per_step() + static_cast<int>(threadIdx.x) / kLayout.lanes;
            if (row < now.rows)
#pragma unroll
                for (int i = 0; i < kLayout.vectors(); ++i)
                    cp_async_16(shared.state[into][i][threadIdx.x].bytes,
                                rows + (now.first_row + row) * static_cast<i64>(kConfig.head_k) +
                                    Slice::column(i, threadIdx.x % kLayout.lanes));
            if (++step * kConfig.rows_per_step() >= now.rows) step = 0, ++part;
            into = into + 1 == kStages ? 0 : into + 1;
        }
        cp_async_fence();
    }
    __device__ __forceinline__ void take(Slice& slice, bool exists) {
        cp_async_wait<kStages - 1>();
        if (exists) {
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

// The recurrence of a part's rows; outputs overwrite values.
template <DecodeLayerConfig kConfig>
__device__ __forceinline__ void advance_part(DecodeLayerSharedPlan<kConfig>& shared, LayerRing<kConfig>& ring,
                                             const LayerPart& part, typename LayerRing<kConfig>::State* states_after) {
    using Io = Storage<kConfig.io>;
    constexpr StateLayout kLayout = kConfig.layout();
    using Slice = RowSlice<Io, kLayout, true, true>;
    const DecodeLayerArgs& args = ring.args;
    const int lane = threadIdx.x % kLayout.lanes;

    Slice query, key;
    TokenScalars scalars;
    const auto load_token = [&](int t) {
        query.load(reinterpret_cast<const Io*>(shared.query[t].bytes), lane, kConfig.head_k);
        key.load(reinterpret_cast<const Io*>(shared.key[t].bytes), lane, kConfig.head_k);
        scalars = shared.products[t];
    };
    int head = 0, head_end = args.dv;
#pragma unroll 1
    for (int row = static_cast<int>(threadIdx.x) / kLayout.lanes, first = 0; first < part.rows;
         row += kConfig.rows_per_step(), first += kConfig.rows_per_step()) {
        const bool exists = row < part.rows;
        for (; exists && row >= head_end; head_end += args.dv) ++head;
        typename LayerRing<kConfig>::Slice loaded;
        ring.take(loaded, exists);
        float s[kLayout.per_lane];
#pragma unroll
        for (int i = 0; i < kLayout.per_lane; ++i) s[i] = loaded[i];
        const i64 offset = (part.first_row + row) * static_cast<i64>(kConfig.head_k);
#pragma unroll 1
        for (int t = 0; t < (kConfig.tokens == 1 ? 1 : args.tokens); ++t) {
            load_token(t);
            const LayerGate gate = shared.gates[t][head];
            scalars.decay = gate.decay, scalars.beta = gate.beta;
            if (resets(scalars))
#pragma unroll
                for (float& x : s) x = 0.f;
            const float out = advance<kLayout>(s, query, key, scalars, exists ? shared.value[t][row] : 0.f);
            __syncwarp();
            if (lane == 0 && exists) shared.value[t][row] = out;
            if (const i64 target = shared.target[t]; exists && target >= 0)
                loaded.store(states_after + target + offset, lane, kConfig.head_k, s);
        }
    }
}

// 1 / sqrt(mean(o^2) + epsilon) of a head, of which a lane has kMine elements. Squares that fp32 cannot hold are taken of a
// scaled head.
template <int kMine>
__device__ __forceinline__ float inverse_rms(const float (&o)[kMine], int dv, float epsilon) {
    const float per_row = __fdividef(1.f, static_cast<float>(dv));
    const auto mean_square = [&](float scale) {
        float sum = 0.f;
#pragma unroll
        for (int i = 0; i < kMine; ++i) sum = fmaf(o[i] * scale, o[i] * scale, sum);
        return fmaf(group_sum<32>(sum), per_row, epsilon * scale * scale);
    };
    const float mean = mean_square(1.f);
    if (conv::in_range(mean)) return conv::inverse_root(mean);  // the same for all lanes
    float most = sqrtf(epsilon);
#pragma unroll
    for (int i = 0; i < kMine; ++i) most = fmaxf(most, fabsf(o[i]));
#pragma unroll
    for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    const float scale = conv::inverse_magnitude(most);
    return conv::inverse_root(mean_square(scale)) * scale;
}

// A warp normalises one token of one head.
template <DecodeLayerConfig kConfig>
__device__ __forceinline__ void store_outputs(const DecodeLayerSharedPlan<kConfig>& shared, const DecodeLayerArgs& args,
                                              const LayerPart& part, Storage<kConfig.io>* outputs) {
    constexpr int kMine = 256 / 32;  // rows of a lane, at most
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int task = static_cast<int>(threadIdx.x) / 32; task < args.tokens * part.heads; task += kConfig.threads() / 32) {
        const int t = task / part.heads, first = task % part.heads * args.dv;
        float o[kMine];
#pragma unroll
        for (int i = 0; i < kMine; ++i) o[i] = lane + i * 32 < args.dv ? shared.value[t][first + lane + i * 32] : 0.f;
        const float inverse = inverse_rms(o, args.dv, args.epsilon);
        Storage<kConfig.io>* to = outputs + t * args.output_token + part.first_row + first;
#pragma unroll
        for (int i = 0; i < kMine; ++i)
            if (const int row = lane + i * 32; row < args.dv)
                to[row] = from_float<Storage<kConfig.io>>(o[i] * inverse * shared.gain[t][first + row]);
    }
}

template <DecodeLayerConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.blocks_at_least())
    decode_layer(const __grid_constant__ DecodeLayerArgs args) {
    using Io = Storage<kConfig.io>;
    using State = Storage<kConfig.state>;
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<DecodeLayerSharedPlan<kConfig>*>(memory);
    const int sequence = static_cast<int>(blockIdx.x / static_cast<unsigned>(args.key_heads));
    const int key_head = static_cast<int>(blockIdx.x) - sequence * args.key_heads;
    const LayerChannels<kConfig> all{args, sequence, key_head};
    const int rows = args.heads_per_key * args.dv;
    const i64 first_row = static_cast<i64>(key_head) * rows;
    Io* const outputs = static_cast<Io*>(args.output) + sequence * args.output_batch + first_row;

    LayerSlots slots;
    slots.load(args, sequence);
    LayerTokens<kConfig> tokens;
    tokens.load(all, LayerPart(args, 0));
    // Padding, or an invalid index, which only the device can see.
    if (const Place place = slots.place(args); args.slots.data != nullptr && place != Place::run) {
#pragma unroll 1
        for (int t = 0; t < args.tokens; ++t)
            for (int row = threadIdx.x; row < rows; row += kConfig.threads())
                outputs[t * args.output_token + row] = from_float<Io>(conv::output_without_state(place));
        return;
    }

    const int parts = (args.heads_per_key + args.part_heads - 1) / args.part_heads;
    const i64 first_element = first_row * kConfig.head_k;
    LayerRing<kConfig> ring{args, shared,
                            static_cast<const State*>(args.state_in) + slots.state * args.state_slot + first_element, parts};
#pragma unroll 1
    for (int stage = 0; stage < kConfig.stages(); ++stage) ring.fetch();
    if (const int t = static_cast<int>(threadIdx.x); t < args.tokens)
        shared.target[t] = target_of_token(args, sequence, slots.state, t);

#pragma unroll 1
    for (int number = 0; number < parts; ++number) {
        const LayerPart part(args, number);
        if (number > 0) {
            tokens = {};
            tokens.load(all, part);
        }
        tokens.run(all, part, slots, shared);
        __syncthreads();
        if (number == 0) {
            set_token_products(shared, args);
            __syncthreads();
        }
        LayerTokens<kConfig>::store_histories(all, part, slots);
        advance_part(shared, ring, part, static_cast<State*>(args.state_out) + first_element);
        __syncthreads();
        store_outputs(shared, args, part, outputs);
        if (number + 1 < parts) __syncthreads();  // before values and gains are overwritten
    }
}

}  // namespace gdn_cuda::gdn
