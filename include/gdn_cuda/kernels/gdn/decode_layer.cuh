// gdn/decode_layer: a layer's step between its projections, for a token or a few of every sequence, states of pools updated in
// place.
//
//     q, k, v <- silu(conv(q, k, v))        q, k <- l2 norm        S <- exp(g) S        v' = beta (v - S k)
//     S <- S + v' k^T        o = scale S q        out = o / sqrt(mean(o^2) + epsilon) * weight * silu(z)
//
// A cluster of blocks has a key head of a sequence, and so all value heads that read it. Each block has a share of the
// channels of query and key, which it sends through the convolution and then to all blocks; a share of the rows of S, with
// their channels of the value; and a share of the heads to normalise, whose outputs the others send to it. So nothing is
// computed twice, a channel's inputs are read and moved by one thread, and blocks meet twice.
//
// Rows of S move as in gdn/decode: through a ring in shared memory that each thread fills and reads for itself, and that is on
// its way while tokens are computed. Value heads that have more rows than shared memory has room for come in parts, one after
// the other; the ring runs on.
//
// Query, key and value are rounded as causal_conv1d_update rounds them, and sums are those of gdn/decode, so that states are
// those of the separate operators to the bit.
//
// Bound: memory, by the state's bytes, read and written once, beside which projections and the convolution's state are 4 %
// (fp32 states of 128 x 128). Few sequences: latency, of the slot, of the state's rows, of two meetings and of cold code, so
// code is short rather than unrolled.
#pragma once

#include <gdn_cuda/kernels/common/block_group.cuh>
#include <gdn_cuda/kernels/common/cp_async_ptx.cuh>
#include <gdn_cuda/kernels/conv/rms_norm_row.cuh>
#include <gdn_cuda/kernels/gdn/decode_layer_tokens.cuh>

namespace gdn_cuda::gdn {

// Value heads that the blocks of a key head have at once, and what this block has of them.
template <DecodeLayerConfig kConfig>
struct LayerPart {
    int first_head, heads;
    int first_row, rows;  // of this block, among the rows of the key head
    int head_row;         // the first of them, among those of the part's heads
    int norms;            // outputs to normalise, of a head and a token each: numbers rank, rank + blocks, ...

    __device__ __forceinline__ LayerPart(const DecodeLayerArgs& args, int part, int rank)
        : first_head(part * args.part_heads), heads(min(args.part_heads, args.heads_per_key - first_head)) {
        const int all = heads * args.dv, share = ceil_div(all, kConfig.blocks);
        head_row = min(rank * share, all);
        rows = min(share, all - head_row);
        first_row = first_head * args.dv + head_row;
        norms = (args.tokens * heads - rank + kConfig.blocks - 1) / kConfig.blocks;
    }
    // Of output number n, the token; outputs of a token are numbered by head.
    __device__ __forceinline__ int token_of(int n) const { return kConfig.tokens == 1 ? 0 : n / heads; }
};

// The block's channels, through the convolution to where they are used. Those of query and key come with the first part.
template <DecodeLayerConfig kConfig>
__device__ __forceinline__ void run_channels(DecodeLayerSharedPlan<kConfig>& shared, const BlockGroup<kConfig.blocks>& group,
                                             const LayerChannels<kConfig>& all, const LayerPart<kConfig>& part,
                                             const LayerSlots& slots) {
    using Io = Storage<kConfig.io>;
    constexpr int kPairs = LayerChannels<kConfig>::kPairs;
    const int pairs = part.first_head == 0 ? kConfig.pairs_per_block() : 0;
#pragma unroll 1
    for (int i = threadIdx.x; i < pairs + part.rows; i += kConfig.threads()) {
        const bool is_pair = i < pairs;
        LayerChannel<kConfig> channel{all, is_pair ? group.rank * pairs + i : kPairs + part.first_row + i - pairs};
        channel.load(slots);
        channel.run([&](int t, Io y) {
            if (!is_pair) {
                shared.value[t][i - pairs] = to_float(y);
                return;
            }
            const bool is_query = channel.c < kConfig.head_k;
            Io* const to = reinterpret_cast<Io*>(is_query ? shared.query[t].bytes : shared.key[t].bytes);
#pragma unroll 1
            for (int block = 0; block < kConfig.blocks; ++block) group.store(to[channel.c % kConfig.head_k], block, y);
        });
        channel.store_history(slots);
    }
}

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
    int rank;
    const State* rows;  // of the key head
    int parts, part = 0, step = 0, into = 0, from = 0;

    __device__ __forceinline__ void fetch() {
        if (part < parts) {
            const LayerPart<kConfig> now(args, part, rank);
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

// The recurrence of the block's rows of a part. Outputs go to the block that normalises them.
template <DecodeLayerConfig kConfig>
__device__ __forceinline__ void advance_part(DecodeLayerSharedPlan<kConfig>& shared, const BlockGroup<kConfig.blocks>& group,
                                             LayerRing<kConfig>& ring, const LayerPart<kConfig>& part,
                                             typename LayerRing<kConfig>::State* states_after) {
    using Io = Storage<kConfig.io>;
    constexpr StateLayout kLayout = kConfig.layout();
    const DecodeLayerArgs& args = ring.args;
    const int lane = threadIdx.x % kLayout.lanes;

    RowSlice<Io, kLayout, true, true> query, key;
    TokenScalars scalars;
    const auto load_token = [&](int t) {
        query.load(reinterpret_cast<const Io*>(shared.query[t].bytes), lane, kConfig.head_k);
        key.load(reinterpret_cast<const Io*>(shared.key[t].bytes), lane, kConfig.head_k);
    };
    if constexpr (kConfig.tokens == 1) {
        load_token(0);
        set_products<kLayout>(scalars, query, key, args.scale, true);
    }
    int head = 0, head_begin = 0;
#pragma unroll 1
    for (int row = static_cast<int>(threadIdx.x) / kLayout.lanes, first = 0; first < part.rows;
         row += kConfig.rows_per_step(), first += kConfig.rows_per_step()) {
        const bool exists = row < part.rows;
        for (; exists && part.head_row + row >= head_begin + args.dv; head_begin += args.dv) ++head;
        typename LayerRing<kConfig>::Slice loaded;
        ring.take(loaded, exists);
        float s[kLayout.per_lane];
#pragma unroll
        for (int i = 0; i < kLayout.per_lane; ++i) s[i] = loaded[i];
        const i64 offset = (part.first_row + row) * static_cast<i64>(kConfig.head_k);
#pragma unroll 1
        for (int t = 0; t < (kConfig.tokens == 1 ? 1 : args.tokens); ++t) {
            if constexpr (kConfig.tokens > 1) {
                load_token(t);
                scalars = shared.products[t];
            }
            const LayerGate gate = shared.gates[t][head];
            scalars.decay = gate.decay, scalars.beta = gate.beta;
            if (resets(scalars))
#pragma unroll
                for (float& x : s) x = 0.f;
            const float out = advance<kLayout>(s, query, key, scalars, exists ? shared.value[t][row] : 0.f);
            if (lane == 0 && exists) {
                const int number = t * part.heads + head;
                const int at = number / kConfig.blocks * args.dv + part.head_row + row - head_begin;
                group.store(shared.output[at], number % kConfig.blocks, out);
            }
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
    float scale = 1.f;
#pragma unroll 1
    for (bool is_scaled = false;; is_scaled = true) {
        float sum = 0.f;
#pragma unroll
        for (int i = 0; i < kMine; ++i) sum = fmaf(o[i] * scale, o[i] * scale, sum);
        const float mean = fmaf(group_sum<32>(sum), per_row, epsilon * scale * scale);
        if (is_scaled || conv::in_range(mean)) return conv::inverse_root(mean) * scale;  // the same for all lanes
        float most = sqrtf(epsilon);
#pragma unroll
        for (int i = 0; i < kMine; ++i) most = fmaxf(most, fabsf(o[i]));
#pragma unroll
        for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
        scale = conv::inverse_magnitude(most);
    }
}

// A warp normalises one token of one head.
template <DecodeLayerConfig kConfig>
__device__ __forceinline__ void store_outputs(const DecodeLayerSharedPlan<kConfig>& shared, const DecodeLayerArgs& args,
                                              const LayerPart<kConfig>& part, int rank, Storage<kConfig.io>* outputs) {
    constexpr int kMine = kMostHeadRows / 32;  // rows of a lane, at most
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int norm = static_cast<int>(threadIdx.x) / 32; norm < part.norms; norm += kConfig.threads() / 32) {
        const int number = norm * kConfig.blocks + rank, t = part.token_of(number);
        float o[kMine];
#pragma unroll
        for (int i = 0; i < kMine; ++i) o[i] = lane + i * 32 < args.dv ? shared.output[norm * args.dv + lane + i * 32] : 0.f;
        const float inverse = inverse_rms(o, args.dv, args.epsilon);
        Storage<kConfig.io>* to = outputs + t * args.output_token + (part.first_head + number - t * part.heads) * args.dv;
#pragma unroll
        for (int i = 0; i < kMine; ++i)
            if (const int row = lane + i * 32; row < args.dv)
                to[row] = from_float<Storage<kConfig.io>>(o[i] * inverse * shared.gain[norm * args.dv + row]);
    }
}

// Gates of the part's tokens, and what outputs are multiplied by: neither waits for a slot.
template <DecodeLayerConfig kConfig>
__device__ __forceinline__ void set_gates(DecodeLayerSharedPlan<kConfig>& shared, const LayerChannels<kConfig>& all,
                                          const LayerPart<kConfig>& part, int rank) {
    const DecodeLayerArgs& args = all.args;
    if (const int i = static_cast<int>(threadIdx.x); i < args.tokens * part.heads) {
        const int t = part.token_of(i), head = i - t * part.heads;
        shared.gates[t][head] = layer_gate(args, all.sequence, t, all.key_head, part.first_head + head);
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < part.norms * args.dv; i += kConfig.threads()) {
        const int norm = i / args.dv, row = i - norm * args.dv, number = norm * kConfig.blocks + rank,
                  t = part.token_of(number);
        const int head = part.first_head + number - t * part.heads;
        shared.gain[i] = layer_gain(args, all.row(args.z, head * args.dv + row)[t * args.z.token], row);
    }
}

template <DecodeLayerConfig kConfig>
__device__ __forceinline__ void run_layer(const DecodeLayerArgs& args) {
    using Io = Storage<kConfig.io>;
    using State = Storage<kConfig.state>;
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<DecodeLayerSharedPlan<kConfig>*>(memory);
    const BlockGroup<kConfig.blocks> group;
    const unsigned task = blockIdx.x / kConfig.blocks;
    const int sequence = static_cast<int>(task / static_cast<unsigned>(args.key_heads));
    const int key_head = static_cast<int>(task) - sequence * args.key_heads;
    const LayerChannels<kConfig> all{args, sequence, key_head};
    const int rows = args.heads_per_key * args.dv;
    const i64 first_row = static_cast<i64>(key_head) * rows;
    Io* const outputs = static_cast<Io*>(args.output) + sequence * args.output_batch + first_row;

    LayerSlots slots;
    slots.load(args, sequence);
    const int parts = (args.heads_per_key + args.part_heads - 1) / args.part_heads;
    const i64 first_element = first_row * kConfig.head_k;
    LayerRing<kConfig> ring{args, shared, group.rank, static_cast<const State*>(args.state_in) + first_element, parts};
#pragma unroll 1
    for (int number = 0; number < parts; ++number) {
        const LayerPart<kConfig> part(args, number, group.rank);
        set_gates(shared, all, part, group.rank);
        if (number == 0) {
            // Padding, or an invalid index, which only the device can see.
            if (const Place place = slots.place(args); args.slots.data != nullptr && place != Place::run) {
#pragma unroll 1
                for (int t = 0; t < args.tokens; ++t)
#pragma unroll 1
                    for (int row = group.rank * kConfig.threads() + threadIdx.x; row < rows;
                         row += kConfig.blocks * kConfig.threads())
                        outputs[t * args.output_token + row] = from_float<Io>(conv::output_without_state(place));
                return;
            }
            ring.rows += slots.state * args.state_slot;
#pragma unroll 1
            for (int stage = 0; stage < kConfig.stages(); ++stage) ring.fetch();
            if (const int t = static_cast<int>(threadIdx.x); t < args.tokens)
                shared.target[t] = target_of_token(args, sequence, slots.state, t);
            group.sync();  // all blocks have begun
        }
        run_channels(shared, group, all, part, slots);
        group.sync();
        if (kConfig.tokens > 1 && number == 0) {
            set_token_products(shared, args);
            __syncthreads();
        }
        advance_part(shared, group, ring, part, static_cast<State*>(args.state_out) + first_element);
        group.sync();
        store_outputs(shared, args, part, group.rank, outputs);
        if (number + 1 < parts) __syncthreads();  // before gains are overwritten
    }
}

template <DecodeLayerConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.blocks_at_least())
    decode_layer(const __grid_constant__ DecodeLayerArgs args) {
    run_layer<kConfig>(args);
}

}  // namespace gdn_cuda::gdn
