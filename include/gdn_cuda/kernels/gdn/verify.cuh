// gdn/verify: a few tokens (up to 16) of every sequence of a padded batch, as in speculative decoding.
//
//     S <- exp(g) S        v' = beta (v - S k)        S <- S + v' k^T        o = scale S q
//
// A group of lanes owns some rows of the state, as in gdn/recurrent, and keeps them in registers from the first token to the
// last. A block takes several steps of such rows; cp.async copies the next step's while one goes through the tokens. Tokens are
// in shared memory in fp32, converted once for all rows of the block.
//
// With few sequences, latency bounds: the accepted count, the slot index and the state are loaded one after another. So the
// loads of tokens are issued before the slot index is used, and the tokens are converted while the state is in flight.
//
// Bound: the state's bytes, read once and written once (once per token where every state is kept); from about eight tokens on,
// arithmetic: four instructions a token for each element. docs/benchmarks/decode.md has the shares reached.
#pragma once

#include <gdn_cuda/kernels/common/dependent_launch.cuh>
#include <gdn_cuda/kernels/gdn/verify/rows.cuh>
#include <gdn_cuda/kernels/gdn/verify/tokens.cuh>

namespace gdn_cuda::gdn {

template <VerifyConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.blocks_at_least()) verify(const __grid_constant__ VerifyArgs all) {
    using State = Storage<kConfig.state>;
    constexpr int kStepRows = kConfig.rows_per_step();
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<VerifySharedPlan<kConfig>*>(memory);
    const GdnCall& args = all.call;

    wait_on_dependent_grids();
    SlotInFlight slot_in_flight;
    slot_in_flight.load_accepted(args, blockIdx.z);
    const int first_row = blockIdx.x * all.steps * kStepRows;
    const VerifyPlace place{.sequence = static_cast<int>(blockIdx.z),
                            .head = static_cast<int>(blockIdx.y),
                            .first_row = first_row,
                            .rows = min(all.steps * kStepRows, args.dv - first_row)};
    VerifyToken<kConfig> token;
    token.load(args, place, 0);
    const bool from_memory = has_initial_state(args, place.sequence);
    slot_in_flight.load_slot(args);
    i64 slot;
    if (const Place where = slot_in_flight.place(args, slot); where != Place::run) {
        fill_rows<Storage<kConfig.io>>(args, place.sequence, 0, args.tokens, place.head, first_row, place.rows,
                                       where == Place::skip ? 0.f : quiet_nan());
        return;
    }

    const i64 first_element = (static_cast<i64>(place.head) * args.dv + first_row) * kConfig.head_k;
    const State* initial = static_cast<const State*>(args.initial.data) + slot * args.initial.slot +
                           slot_in_flight.step * args.initial.step + first_element;
    VerifyRows<kConfig> rows;
    const auto rows_of = [&](int step) { return place.rows - step * kStepRows; };
    const auto fetch = [&](int step) {
        if (from_memory) rows.fetch(shared, initial + step * kStepRows * kConfig.head_k, rows_of(step));
        cp_async_fence();
    };
    fetch(0);
    VerifyValues<kConfig>::load(shared, args, place);
#pragma unroll 1
    for (int first = 0;;) {
        token.finish(shared, args, place, first);
        first += VerifyToken<kConfig>::kAtOnce;
        if (first >= args.tokens) break;
        token.load(args, place, first);
    }
    const i64 last_slot = last_slot_of(args, place.sequence, slot);
    State* const last = static_cast<State*>(args.last.data) + last_slot * args.last.slot + first_element;
    State* const kept = static_cast<State*>(args.steps.data) + first_element;
    __syncthreads();

#pragma unroll 1
    for (int step = 0; step < all.steps; ++step) {
        cp_async_wait<0>();
        rows.take(shared, from_memory ? rows_of(step) : 0);
        fetch(step + 1);
        const int at = step * kStepRows;
#pragma unroll 1
        for (int t = 0; t < args.tokens; ++t) {
            rows.advance(shared, t, at);
            if (const i64 to = shared.kept[t]; to >= 0) rows.store(kept + to + at * kConfig.head_k, rows_of(step));
        }
        if (last_slot >= 0) rows.store(last + at * kConfig.head_k, rows_of(step));
    }
    __syncthreads();
    VerifyValues<kConfig>::store(shared, args, place);
}

}  // namespace gdn_cuda::gdn
