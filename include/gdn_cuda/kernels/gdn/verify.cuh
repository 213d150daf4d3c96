// gdn/verify: a few tokens (up to 16) of every sequence of a padded batch, as in speculative decoding.
//
//     S <- exp(g) S        v' = beta (v - S k)        S <- S + v' k^T        o = scale S q
//
// A group of lanes owns some rows of the state, as in gdn/recurrent, and keeps them in registers from the first token to the
// last. A block processes several steps of rows; cp.async copies the rows of the next step during the tokens of the present
// one. Tokens are in shared memory in fp32, converted once for all rows of the block.
//
// With channel_gates, g has a value for every channel of the key, and S <- S diag(exp(g)): rows are multiplied with a token's
// decays, which are in shared memory, before its key and query.
//
// Bound of many sequences: memory, the state read once and written once, or once per token if every state is kept. From about
// eight tokens on arithmetic: four instructions per token for each element. On an H200 with 64 sequences of 32 heads and fp32
// states, 82 % of a copy's bandwidth with 4 tokens and 68 % with 8; if every state is kept, 84 and 83 %
// (docs/benchmarks/decode.md).
//
// Bound of few sequences: latency, as the accepted count, the slot index and the state are loaded one after another. So loads
// of tokens are issued before the slot index is used, and tokens are converted while loads of the state are in flight.
#pragma once

#include <gdn_cuda/kernels/common/dependent_launch.cuh>
#include <gdn_cuda/kernels/gdn/verify/rows.cuh>
#include <gdn_cuda/kernels/gdn/verify/tokens.cuh>
#include <gdn_cuda/kernels/recurrence/channel_loads.cuh>

namespace gdn_cuda::gdn {

template <VerifyConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.blocks_at_least())
    verify(const __grid_constant__ VerifyArgs args) {
    using State = Storage<kConfig.state>;
    constexpr int kStepRows = kConfig.rows_per_step();
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<VerifySharedPlan<kConfig>*>(memory);
    const GdnCall& call = args.call;

    wait_on_dependent_grids();
    SlotInFlight slot_in_flight;
    slot_in_flight.load_accepted(call, blockIdx.z);
    const int first_row = blockIdx.x * args.steps * kStepRows;
    const VerifyPlace place{.sequence = static_cast<int>(blockIdx.z),
                            .head = static_cast<int>(blockIdx.y),
                            .first_row = first_row,
                            .rows = min(args.steps * kStepRows, call.dv - first_row)};
    VerifyToken<kConfig> token;
    token.load(call, place, 0);
    ChannelLoads<kConfig.head_k, kConfig.threads(), 4> channels;
    const auto gate_at = [&](int t) { return scalar_offset(call.gate, place.sequence, t, place.head); };
    if constexpr (kConfig.channel_gates) channels.load(call, place.head, 0, call.tokens, gate_at);
    const bool from_memory = has_initial_state(call, place.sequence);
    slot_in_flight.load_slot(call);
    i64 slot;
    if (const Place where = slot_in_flight.place(call, slot); where != Place::run) {
        fill_rows<Storage<kConfig.io>>(call, place.sequence, 0, call.tokens, place.head, first_row, place.rows,
                                       where == Place::skip ? 0.f : quiet_nan());
        return;
    }

    const i64 first_element = (static_cast<i64>(place.head) * call.dv + first_row) * kConfig.head_k;
    const StatePointer<State> initial = state_at<State>(call.initial, slot, slot_in_flight.step) + first_element;
    VerifyRows<kConfig> rows;
    const auto rows_of = [&](int step) { return place.rows - step * kStepRows; };
    const auto fetch = [&](int step) {
        if (from_memory) rows.fetch(shared, initial + step * kStepRows * kConfig.head_k, rows_of(step));
        cp_async_fence();
    };
    fetch(0);
    VerifyValues<kConfig>::load(shared, call, place);
#pragma unroll 1
    for (int first = 0;;) {
        token.finish(shared, call, place, first);
        first += VerifyToken<kConfig>::kAtOnce;
        if (first >= call.tokens) break;
        token.load(call, place, first);
    }
    const i64 last_slot = last_slot_of(call, place.sequence, slot);
    const StatePointer<State> last = state_at<State>(call.last, last_slot, 0) + first_element;
    const StatePointer<State> kept = state_at<State>(call.steps, 0, 0) + first_element;
    bool resets_columns = false;
    if constexpr (kConfig.channel_gates)
        resets_columns =
            __syncthreads_or(channels.finish(call, place.head, call.tokens, gate_at, [&](int t) { return shared.decays[t]; }));
    else
        __syncthreads();

#pragma unroll 1
    for (int step = 0; step < args.steps; ++step) {
        cp_async_wait<0>();
        rows.read(shared, from_memory ? rows_of(step) : 0);
        fetch(step + 1);
        const int at = step * kStepRows;
#pragma unroll 1
        for (int t = 0; t < call.tokens; ++t) {
            rows.advance(shared, t, at, resets_columns);
            if (const i64 to = shared.kept[t]; to >= 0) {
                if constexpr (kConfig.state == DType::i8)
                    rows.store(state_at<State>(call.steps, to, t) + (first_element + at * kConfig.head_k), rows_of(step));
                else
                    rows.store(kept + to + at * kConfig.head_k, rows_of(step));
            }
        }
        if (last_slot >= 0) rows.store(last + at * kConfig.head_k, rows_of(step));
    }
    __syncthreads();
    VerifyValues<kConfig>::store(shared, call, place);
}

}  // namespace gdn_cuda::gdn
