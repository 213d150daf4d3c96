// gdn/replay: speculative verify that stores tokens instead of states. The last call stored w = v' and k of each of its tokens.
// A call applies the accepted tokens j among them, writes that state back, and runs its own tokens t without writing a state:
//
//     S <- (product of decays) S + sum over j of (decays after j) w_j k_j^T
//     v'_t = beta_t (v_t - D_t S k_t - sum over new j < t of (decays after j) v'_j (k_j.k_t))
//     o_t = scale (D_t S q_t + sum over new j <= t of (decays after j) v'_j (k_j.q_t))
//
// where D_t is the product of the decays of new tokens up to t, and "decays after j" their product.
//
// So each row of S is loaded, updated and stored once, and multiplied with the keys and queries of all new tokens at once. A
// group of lanes owns four rows; a round of shuffles sums the products of four rows and four keys or queries and leaves one sum
// in each lane. Then one thread per row computes the recurrence between tokens. cp.async keeps row steps in flight as in
// gdn/decode. The products of tokens with each other are computed by the same code, on keys and queries in place of rows.
//
// With channel_gates, decays are vectors over the columns of S. Rows are multiplied with those of a stored token before its
// update, and with those of a new token before its key and query; so are earlier keys where tokens are multiplied with each
// other. Every product of decays is then in the sums, and 0 clears a column.
//
// Blocks of other heads and rows read the stored keys and decays that one block replaces, so there are two banks of them
// (replay/plan.cuh).
//
// Bound: memory, the state read and written once however many tokens there are: 77 % of a copy's bandwidth on an H200 with 64
// sequences, 4 tokens and fp32 states, 88 % with 256. With bf16 states (47 %), and from about eight tokens on (57 %),
// arithmetic: two multiply-adds per token and one per stored token for each element of the state (docs/benchmarks/decode.md).
#pragma once

#include <gdn_cuda/kernels/common/cp_async_ptx.cuh>
#include <gdn_cuda/kernels/common/dependent_launch.cuh>
#include <gdn_cuda/kernels/gdn/replay/tokens.cuh>

namespace gdn_cuda::gdn {

template <ReplayConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.blocks_at_least())
    replay(const __grid_constant__ ReplayArgs args) {
    constexpr StateLayout kLayout = kConfig.layout();
    constexpr int kRows = ReplayConfig::kRowsPerThread, kStages = kConfig.stages(), kRing = kStages > 0 ? kStages : 1;
    using Io = Storage<kConfig.io>;
    using State = Storage<kConfig.state>;
    using StateSlice = RowSlice<State, kLayout, kConfig.aligned, kConfig.exact_k>;
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<ReplaySharedPlan<kConfig>*>(memory);

    wait_on_dependent_grids();
    ReplayPlace<kConfig> place;
    const int stored = place.find(args);
    if (stored < 0) return;

    const int lane = threadIdx.x % kLayout.lanes, group = threadIdx.x / kLayout.lanes;
    const auto row_of = [&](int step, int r) {
        return step * kConfig.rows_per_step() + group * kRows + r;
    };  // index in the block
    const auto in_range = [&](int step, int r) { return step < args.steps && place.first_row + row_of(step, r) < args.dv; };
    State* const states = static_cast<State*>(args.pool) + place.slot * args.pool_slot +
                          (static_cast<i64>(place.head) * args.dv + place.first_row) * args.dk;
    const auto row_at = [&](int step, int r) { return states + static_cast<i64>(row_of(step, r)) * args.dk; };
    const auto fetch = [&](int step) {
#pragma unroll
        for (int r = 0; r < kRows; ++r)
            if (in_range(step, r))
#pragma unroll
                for (int i = 0; i < kLayout.vectors(); ++i)
                    cp_async_16(shared.state[step % kRing][r][i][threadIdx.x].bytes,
                                row_at(step, r) + StateSlice::column(i, lane));
        cp_async_fence();
    };
    // All loads of the block are issued before the first wait.
    load_keys_and_queries(shared, args, place);
    if constexpr (kStages > 0)
#pragma unroll 1
        for (int step = 0; step < kStages; ++step) fetch(step);
    GateLoads<kConfig> gates;
    gates.load(args, place);
    RowLoads<kConfig> loads;
    loads.load(args, place, stored);
    load_stored_keys(shared, args, place, stored);
    if constexpr (kConfig.channel_gates) load_stored_decays(shared, args, place, stored);
    cp_async_fence();
    ChannelLoads<kConfig.head_k, kConfig.threads(), 4> channels(args.dk);
    const auto gate_at = [&](int t) { return scalar_offset(args.gate, place.sequence, place.start + t, place.head); };
    if constexpr (kConfig.channel_gates)
        if (place.length > 0) {
            channels.load(args, place.head, 0, place.length, gate_at);
            channels.finish(args, place.head, place.length, gate_at, [&](int t) { return shared.decays[t]; });
        }
    gates.finish(shared, args, place);
    const StoredSteps steps = loads.finish(shared, place, stored);
    cp_async_wait<0>();
    __syncthreads();
    bool may_reset = false;
    if constexpr (kConfig.channel_gates) may_reset = find_resets(shared, args, place, stored);
    prepare_tokens(shared, args, place, may_reset);
    const auto every_row = [](int) { return true; };

#pragma unroll 1
    for (int step = 0; step < args.steps; ++step) {
        if constexpr (kStages > 0) cp_async_wait<kStages - 1>();
        float rows[kRows][kLayout.per_lane];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            StateSlice slice;
            if (!in_range(step, r) || steps.cleared) {
                slice.clear();
            } else if constexpr (kStages > 0) {
#pragma unroll
                for (int i = 0; i < kLayout.vectors(); ++i)
                    slice.vectors[i].load(reinterpret_cast<const State*>(shared.state[step % kRing][r][i][threadIdx.x].bytes));
            } else {
                slice.load_streaming(row_at(step, r), lane, args.dk);
            }
#pragma unroll
            for (int i = 0; i < kLayout.per_lane; ++i) rows[r][i] = slice[i];
        }
        if constexpr (kStages > 0) fetch(step + kStages);

        if (stored > 0) {
            if constexpr (!kConfig.channel_gates)
#pragma unroll
                for (auto& row : rows)
#pragma unroll
                    for (float& x : row) x *= steps.decay;
#pragma unroll 1
            for (int j = steps.first; j < stored; ++j) {
                if constexpr (kConfig.channel_gates)
                    decay_columns<kConfig>(rows, shared.stored_decays[j], lane, may_reset, every_row);
                RowSlice<Io, kLayout, true, true> key;
                key.load(reinterpret_cast<const Io*>(shared.stored_keys[j].bytes), lane, kConfig.head_k);
                Vector<float, kRows, true> updates;
                updates.load(&shared.stored[j][row_of(step, 0)]);
#pragma unroll
                for (int r = 0; r < kRows; ++r)
#pragma unroll
                    for (int i = 0; i < kLayout.per_lane; ++i) rows[r][i] = fmaf(updates.items[r], key[i], rows[r][i]);
            }
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                StateSlice slice;
                if (in_range(step, r)) slice.store(row_at(step, r), lane, args.dk, rows[r]);
            }
        }
        multiply<kConfig>(
            shared, 2 * place.length, rows, lane,
            [&](int t) {
                if constexpr (kConfig.channel_gates) decay_columns<kConfig>(rows, shared.decays[t], lane, may_reset, every_row);
            },
            [&](int vector, int r, float x) { shared.products[vector][row_of(step, r)] = x; });
    }
    __syncthreads();
    finish_tokens(shared, args, place);
    store_steps(shared, args, place);
}

}  // namespace gdn_cuda::gdn
