// gdn/verify: a few tokens (up to 16) of every sequence of a padded batch, as in speculative decoding.
//
//     S <- exp(g) S        v' = beta (v - S k)        S <- S + v' k^T        o = scale S q
//
// The state moves as in gdn/decode: row steps in flight in shared memory, copied by the threads that will use them. Tokens are
// in shared memory for all rows of the block (tokens.cuh), so each row step goes through all tokens before the next.
//
// Bound: with few tokens, the state's bytes, read once and written once (once per token where every state is kept); from about
// eight tokens on, arithmetic. docs/benchmarks/decode.md has the shares reached.
#pragma once

#include <gdn_cuda/kernels/common/cp_async_ptx.cuh>
#include <gdn_cuda/kernels/gdn/tokens.cuh>
#include <gdn_cuda/kernels/gdn/verify_plan.cuh>

namespace gdn_cuda::gdn {

template <VerifyConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads()) verify(const __grid_constant__ RecurrentArgs args) {
    constexpr StateLayout kLayout = kConfig.layout();
    constexpr int kRows = kConfig.rows_per_thread;
    using State = Storage<kConfig.state>;
    using StateSlice = RowSlice<State, kLayout, true, true>;
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<VerifySharedPlan<kConfig>*>(memory);

    const int sequence = blockIdx.z, head = blockIdx.y;
    const int lane = threadIdx.x % kLayout.lanes, group = threadIdx.x / kLayout.lanes;
    const int first_row = blockIdx.x * kConfig.rows_per_block();
    i64 slot;
    int first_step;
    const Place place = starting_slot(args, sequence, slot, first_step);
    if (place != Place::run) {
        fill_outputs<kConfig>(args, sequence, 0, args.tokens, head, first_row, place == Place::skip ? 0.f : quiet_nan());
        return;
    }

    const auto row_of = [&](int step, int r) { return (step * kRows + r) * (kConfig.threads() / kLayout.lanes) + group; };
    const auto in_range = [&](int step, int r) { return first_row + row_of(step, r) < args.dv; };
    const auto row_offset = [&](int step, int r) {
        return (static_cast<i64>(head) * args.dv + first_row + row_of(step, r)) * kConfig.head_k;
    };
    const bool from_memory = has_initial_state(args, sequence);
    const i64 last_slot = last_slot_of(args, sequence, slot, args.tokens);
    const State* initial =
        static_cast<const State*>(args.initial.data) + slot * args.initial.slot + first_step * args.initial.step;
#pragma unroll 1
    for (int step = 0; step < kConfig.steps; ++step) {
#pragma unroll
        for (int r = 0; r < kRows; ++r)
            if (from_memory && in_range(step, r))
#pragma unroll
                for (int i = 0; i < kLayout.vectors(); ++i)
                    cp_async_16(shared.state[step][r][i][threadIdx.x].bytes,
                                initial + row_offset(step, r) + StateSlice::column(i, lane));
        cp_async_fence();
    }
    load_tokens<kConfig>(shared.tokens, args, sequence, 0, args.tokens, head, first_row);

#pragma unroll 1
    for (int step = 0; step < kConfig.steps; ++step) {
        cp_async_wait<kConfig.steps - 1>();
        cp_async_fence();  // empty group: keeps the wait's count of later groups right
        float rows[kRows][kLayout.per_lane];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            StateSlice slice;
#pragma unroll
            for (int i = 0; i < kLayout.vectors(); ++i)
                slice.vectors[i].load(reinterpret_cast<const State*>(shared.state[step][r][i][threadIdx.x].bytes));
            if (!from_memory || !in_range(step, r)) slice.clear();
#pragma unroll
            for (int i = 0; i < kLayout.per_lane; ++i) rows[r][i] = slice[i];
        }
        const auto my_row = [&](int r) { return row_of(step, r); };
        const auto my_offset = [&](int r) { return row_offset(step, r); };
        const auto mine = [&](int r) { return in_range(step, r); };
#pragma unroll 1
        for (int t = 0; t < args.tokens; ++t)
            advance_rows<kConfig, kRows, State, StateSlice>(
                shared.tokens, t, rows, lane, step_state<State>(args, sequence, 0, t), args.dk, my_row, my_offset, mine);
        if (last_slot < 0) continue;
        State* last = static_cast<State*>(args.last.data) + last_slot * args.last.slot;
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            StateSlice slice;
            if (in_range(step, r)) slice.store(last + row_offset(step, r), lane, args.dk, rows[r]);
        }
    }
    __syncthreads();
    store_outputs<kConfig>(shared.tokens, args, sequence, 0, args.tokens, head, first_row);
}

}  // namespace gdn_cuda::gdn
