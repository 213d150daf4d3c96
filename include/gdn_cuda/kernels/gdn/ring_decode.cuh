// gdn/ring_decode: tokens after a state that lacks the last ones, which a ring of W tokens beside it holds. The ring has keys
// k_j, updates w_j = v'_j times the key's scale, and decays. For a new token t, with D the decay since the state and j over the
// ring's tokens and the new ones before t:
//
//     v'_t = beta (v - D S k - sum over j of (decays after j) w_j (k_j.k))
//     o_t = scale (D S q + sum over j <= t of (decays after j) w_j (k_j.q))
//
// The new tokens go to the ring. Only where it has no room for them the state takes the ring's tokens, S <- D S + sum over j of
// (decays after j) w_j k_j^T, and is written. So a state is read in every call and written in one of W + 1: about half of the
// bytes of a step in place; and tokens that are not accepted leave nothing behind.
//
// A block has up to 32 KB of rows of a head's state, which it copies to shared memory by cp.async as soon as the slot is known.
// Products with states of 8 and 16 bits are 16 x 8 tiles of mma.sync: a lane reads 16 bytes of a row at a time (8 codes), and
// elements are multiplied in the order in which lanes have them, the same on both sides, so that no fragment is shuffled. Keys
// and queries of another dtype, and those beside codes, are sums of two of the operands' dtype. Scores of the ring's keys are
// products of the same kind, and so is what a written state takes from the ring. fp32 states take multiply-adds.
//
// Then a thread a row computes the recurrence between tokens. Rounding is that of fp32 sums, and of updates and states where
// they are stored. Decays of 0 are selects: nothing before a reset shows, whatever it was.
//
// The count of a slot's tokens is read by all blocks of the sequence and changed once: each block counts itself in its upper
// half when it has the ring's tokens, and the last one writes the new count. Where new tokens replace entries of the ring that
// other blocks read (verify, a full ring), that block stores their keys and decays too.
//
// Measured on an H200, 256 sequences, 16/32 heads of 128, W 8, half a ring: 94 us with bf16 states and 82 with int8, of which
// bytes are 67 and 40; 217 and 223 where all states are written (132 and 78). Half the rows a block took 1.4 times as long: a
// block holds its shared memory through a chain of loads, three barriers and some 900 instructions a warp, and its state is in
// flight for a part of that. Bound (suspected): bytes in flight. Blocks that stay, and load a next head while they compute,
// would be the remedy.
#pragma once

#include <gdn_cuda/kernels/common/dependent_launch.cuh>
#include <gdn_cuda/kernels/gdn/ring_decode/rows.cuh>

namespace gdn_cuda::gdn {

// A thread's row of values, for all tokens; in flight until they are used.
template <RingDecodeConfig kConfig>
struct RingValues {
    Storage<kConfig.io> value[kConfig.tokens];

    __device__ __forceinline__ void load(const RingDecodeArgs& args, const RingPlace<kConfig>& place) {
        const int row = threadIdx.x;
#pragma unroll
        for (int t = 0; t < kConfig.tokens; ++t)
            if (row < place.rows && t < place.length)
                value[t] = place.token_of(args.value, t, place.head)[place.first_row + row];
    }
};

// The recurrence between tokens for a thread's row. Stores outputs, and updates in place of the products with keys.
template <RingDecodeConfig kConfig>
__device__ __forceinline__ void finish_tokens(RingDecodeSharedPlan<kConfig>& shared, const RingDecodeArgs& args,
                                              const RingPlace<kConfig>& place, const RingValues<kConfig>& values) {
    using Io = Storage<kConfig.io>;
    using Update = Storage<kConfig.updates()>;
    constexpr int kTokens = kConfig.tokens;
    const int row = threadIdx.x;
    if (row >= place.rows) return;
    float stored[2 * kTokens] = {};  // the ring's part of S k and S q, for every token
#pragma unroll 1
    for (int j = 0; j < place.stored; ++j) {
        const float after = shared.after[j];
        if (after == 0.f) continue;
        const float weighted = after * to_float(reinterpret_cast<const Update*>(shared.updates[j])[row]);
#pragma unroll
        for (int i = 0; i < 2 * kTokens; ++i)
            if (i < 2 * place.length) stored[i] = fmaf(weighted, shared.stored_scores[j][i], stored[i]);
    }
    float updates[kTokens];  // times the decays after them
    float new_decay = 1.f;
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
        if (t >= place.length) break;
        const float decay = shared.decay[t];
        new_decay *= decay;
        const float state_decay = new_decay * shared.state_decay;
        float prediction = 0.f, output = 0.f;
        if (state_decay != 0.f)
            prediction = state_decay * shared.products[2 * t][row], output = state_decay * shared.products[2 * t + 1][row];
        if (new_decay != 0.f)
            prediction = fmaf(new_decay, stored[2 * t], prediction), output = fmaf(new_decay, stored[2 * t + 1], output);
#pragma unroll
        for (int s = 0; s < t; ++s) {
            updates[s] = decay == 0.f ? 0.f : decay * updates[s];
            prediction = fmaf(updates[s], shared.scores[2 * s][2 * t], prediction);
            output = fmaf(updates[s], shared.scores[2 * s][2 * t + 1], output);
        }
        const auto norm = [&](int vector) { return args.qk_norm ? rsqrtf(shared.scores[vector][vector] + kNormEpsilon) : 1.f; };
        const float key_scale = norm(2 * t);
        updates[t] = shared.beta[t] * (to_float(values.value[t]) - key_scale * prediction) * key_scale;
        output = args.scale * norm(2 * t + 1) * fmaf(updates[t], shared.scores[2 * t][2 * t + 1], output);
        place.token_of(args.output, t, place.head)[place.first_row + row] = from_float<Io>(output);
        shared.products[2 * t][row] = updates[t];
    }
}

template <RingDecodeConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.blocks_at_least())
    ring_decode(const __grid_constant__ RingDecodeArgs args) {
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<RingDecodeSharedPlan<kConfig>*>(memory);
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;

    wait_on_dependent_grids();
    RingPlace<kConfig> place(args);
    const bool has_room = place.has_room(args);
    RingValues<kConfig> values;
    RingGates<kConfig> gates;
    if (has_room) {
        load_new_tokens(shared, args, place);
        if (warp == 0 && lane < place.length) gates.load(args, place, lane, place.head);
        values.load(args, place);
    }
    if (!place.has_slot(args)) return cp_async_wait<0>();
    const i64 cursor = place.load_cursor(args);
    const RingRows<kConfig> rows(shared, args, place);
    if (place.length > 0 || place.asked) rows.load();
    cp_async_fence();
    if (!place.read_ring(args, cursor)) return cp_async_wait<0>();
    load_stored_tokens(shared, args, place);
    cp_async_fence();
    if (warp == 0) {
        const float stored = lane < place.stored ? *place.ring_decay(args, lane, place.head) : 1.f;
        if (lane < place.length) {
            const TokenScalars scalars = gates.scalars(args);
            shared.decay[lane] = scalars.decay, shared.beta[lane] = scalars.beta;
        }
        store_decays(shared, stored, place.stored, lane);
    }
    const int vectors = 2 * place.length;
    cp_async_wait<1>();
    __syncthreads();

    // While the ring arrives.
    if constexpr (kConfig.splits()) {
        store_parts(shared, vectors);
        __syncthreads();
    }
    rows.multiply();
    // The first warp has the gates: others have scores.
    if (const int tile = RingDecodeConfig::kWarps - 1 - warp; tile < ceil_div(vectors, RingDecodeConfig::kTileRows))
        store_scores<kConfig>(shared.scores, shared, shared.tokens, tile * RingDecodeConfig::kTileRows, vectors, vectors);
    cp_async_wait<0>();
    __syncthreads();

    // What this block reads of the ring has arrived. The count comes back while the block computes.
    unsigned before = 0;
    if (thread == 0) before = place.count_block(args);
    if (const int tile = warp - 1; tile >= 0 && tile < ceil_div(place.stored, RingDecodeConfig::kTileRows))
        store_scores<kConfig>(shared.stored_scores, shared, shared.keys, tile * RingDecodeConfig::kTileRows, place.stored,
                              vectors);
    __syncthreads();

    finish_tokens(shared, args, place, values);
    if (place.overwrites() && thread == 0) shared.is_last = place.is_last(before);
    if (place.folds || place.overwrites()) __syncthreads();
    if (place.keeps && place.length > 0) store_tokens(shared, args, place);
    if (place.folds) rows.fold();
    if (thread == 0 && place.is_last(before)) place.store_cursor(args);
}

}  // namespace gdn_cuda::gdn
