// ssd/replay_step: tokens of Mamba-2 after a state that lacks the last ones, which a ring of W tokens beside it holds. For a
// new token t, j over the ring's tokens and the new ones up to t, with L the decay after j and γ the decay since the state:
//
//     y_t = γ_t S C_t + Σ_j (C_t·B_j) L_tj δ_j x_j + D x_t, times silu(z_t)
//
// The new tokens go to the ring. Only where it has no room for them the state takes the ring's tokens, S <- γ S + Σ_j L δ_j x_j
// B_jᵀ, and is written. So a state is read in every call and written in one of W + 1: about half of the bytes of a step in
// place, and tokens that are not accepted leave nothing behind.
//
// A block has up to 128 rows (channels) of one group of heads, of one sequence: 32 KB of fp32 states, or of bf16 with 128
// columns. Each thread loads all of its 256 bytes at once, in 16-byte vectors that are 128 contiguous bytes of a row for the
// eight lanes that share it, as soon as the slot is known: 128 KB an SM in flight with four blocks. The state stays in
// registers, with its own dtype, so that the block that writes it needs no second load. While it arrives:
//
//     all     B, C and x of new tokens by cp.async, beside the slot; those of the ring once its count is known
//     warps   a head each: δ, sums of δA by shuffles, and from them the weights L δ of all entries
//     groups  of 8 lanes: scores C·B, once a block
//
// then the products S C, and a thread a row adds up its output. Rows of int8 codes are left operands of mma.sync instead, four
// lanes a row, with each C as two fp16 vectors (codes.cuh): widened one by one they would take three instructions an element.
// Rounding is that of fp32 sums, and of the state where it is written. Decays of 0 are selects: nothing before a reset shows,
// whatever it was.
//
// The count of a slot's tokens is read by all blocks of the sequence and changed once: each block counts itself in its upper
// half when it has the ring's tokens, and the last one writes the new count. Where new tokens replace entries of the ring that
// other blocks read (verify, a full ring), that block stores their B and δ too.
//
// Bound: instruction issue, 13.5 an element with bf16 states and 14 with int8 ones (ncu, 0.55 and 0.64 a cycle). Measured on an
// H200 with 64 heads and W 16: 52 and 63 % of a copy's bandwidth with fp32 states at 64 and 256 sequences, 33 and 52 % with
// bf16 (docs/benchmarks/ssd.md). By bytes (computed): 64 sequences of 128 × 64 × 128 read 268 MB of fp32 states, 63 us at 4.24
// TB/s, and write a 17th of it a call (W 16), 4 us; half a ring is 3 % of a state, 6 % in bf16. A step in place takes 127 us.
// 32 KB take an SM 1.02 us of its share of memory, and about 1,100 instructions a thread, 0.63 us of issue slots; a bf16 state,
// twice as many elements in 32 KB, 1,300. Writing a state takes a multiply-add an element and entry, 0.6 us for 16 of them; on
// int8 tf32 products of two parts, a third of that.
#pragma once

#include <gdn_cuda/kernels/common/dependent_launch.cuh>
#include <gdn_cuda/kernels/common/silu.cuh>
#include <gdn_cuda/kernels/ssd/replay_step/codes.cuh>
#include <gdn_cuda/kernels/ssd/replay_step/rows.cuh>
#include <gdn_cuda/kernels/ssd/replay_step/tokens.cuh>

namespace gdn_cuda::ssd {

// A thread's row of z, for a few tokens from `first` on.
template <ReplayStepConfig kConfig>
struct ReplayGates {
    static constexpr int kTokens = kConfig.tokens < 4 ? kConfig.tokens : 4;
    Storage<kConfig.io> z[kTokens];

    __device__ __forceinline__ void load(const ReplayStepArgs& args, const ReplayPlace<kConfig>& place, int first) {
        if (args.z.data == nullptr || static_cast<int>(threadIdx.x) >= place.rows) return;
        const auto at = place.channel_of(args, threadIdx.x);
#pragma unroll
        for (int t = 0; t < kTokens; ++t)
            if (first + t < place.length) z[t] = place.token_of(args.z, first + t, place.first_head + at.head)[at.channel];
    }
};

// A thread's row of the outputs. `gates`: of the first tokens.
template <ReplayStepConfig kConfig>
__device__ __forceinline__ void store_outputs(const ReplayStepSharedPlan<kConfig>& shared, const ReplayStepArgs& args,
                                              const ReplayPlace<kConfig>& place, ReplayGates<kConfig>& gates) {
    using Io = Storage<kConfig.io>;
    constexpr int kTokens = ReplayGates<kConfig>::kTokens;
    const int row = threadIdx.x;
    if (row >= place.rows) return;
    const auto at = place.channel_of(args, row);
    const int head = place.first_head + at.head;
    const bool has_D = args.D.values.data != nullptr;
    const float D = has_D ? load_float(args.D.values, head * args.D.head + at.channel * args.D.channel) : 0.f;
    const auto x = [&](int entry) { return to_float(reinterpret_cast<const Io*>(shared.x[entry].bytes)[row]); };
    const auto output = [&](int t) {
        const auto past = shared.past[at.head][t];
        const float *const weights = shared.weights[at.head][t], *const scores = shared.scores[t];
        float y = past.state_decay == 0.f ? 0.f : past.state_decay * shared.products[t][row];
#pragma unroll 4
        for (int j = place.length + past.first_stored; j < place.length + place.stored; ++j)
            y = fmaf(weights[j] * scores[j], x(j), y);
#pragma unroll 1
        for (int s = past.first_new; s <= t; ++s) y = fmaf(weights[s] * scores[s], x(s), y);
        return has_D ? fmaf(D, x(t), y) : y;
    };
#pragma unroll 1
    for (int first = 0; first < place.length; first += kTokens) {
        if (first > 0) gates.load(args, place, first);
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
            if (first + t >= place.length) break;
            float y = output(first + t);
            if (args.z.data != nullptr) y *= silu(to_float(gates.z[t]));
            place.token_of(args.out, first + t, head)[at.channel] = from_float<Io>(y);
        }
    }
}

// A thread's part of the state.
template <ReplayStepConfig kConfig>
__device__ __forceinline__ auto state_of(const ReplayStepArgs& args, const ReplayPlace<kConfig>& place) {
    if constexpr (kConfig.codes())
        return ReplayCodes<kConfig>(args, place);
    else
        return ReplayRows<kConfig>(args, place);
}

template <ReplayStepConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.blocks_at_least())
    replay_step(const __grid_constant__ ReplayStepArgs args) {
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<ReplayStepSharedPlan<kConfig>*>(memory);
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;

    wait_on_dependent_grids();
    ReplayPlace<kConfig> place(args);
    if (place.has_room(args)) load_new_tokens(shared, args, place);
    if (!place.has_slot(args)) return cp_async_wait<0>();
    const i64 cursor = place.load_cursor(args);
    auto rows = state_of(args, place);
    if (place.length > 0 || place.asked) rows.load(args, place);
    const int heads = place.heads(args), head = place.first_head + warp;
    HeadSteps<kConfig> steps;
    if (warp < heads) steps.load(args, place, head, lane);
    if (!place.read_ring(args, cursor)) return cp_async_wait<0>();
    load_stored_tokens(shared, args, place);
    cp_async_fence();
    if (warp < heads) {
        const float stored = lane < place.stored ? *place.ring_delta(args, lane, head) : 0.f;
        store_weights(shared, args, place, steps, stored, warp, lane);
    }
    cp_async_wait<0>();
    __syncthreads();

    // What this block reads of the ring has arrived. The count comes back while the block computes.
    unsigned before = 0;
    if (thread == 0) before = place.count_block(args);
    ReplayGates<kConfig> gates;
    gates.load(args, place, 0);
    if constexpr (kConfig.codes()) store_parts(shared, args, place.length);
    store_scores(shared, args, place);
    if constexpr (kConfig.codes()) __syncthreads();
    rows.clear_padding(args);
    rows.multiply(shared, args, place);
    if (thread == 0) shared.is_last = place.is_last(before);
    __syncthreads();

    store_outputs(shared, args, place, gates);
    if (place.keeps && place.length > 0) store_tokens(shared, args, place);
    if (place.folds) rows.fold(shared, args, place);
    if (thread == 0 && shared.is_last) place.store_cursor(args);
}

}  // namespace gdn_cuda::ssd
