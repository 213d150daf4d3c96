// gdn/summary_fold: the summary of each tail from those of its segments, in fp32 (gdn/compose.cuh):
//
//     L <- L M' + L'    M <- M M'    segment after segment
//
// and what needs no segment: M = 0 where a tail does not reach the beginning of its part; of a part without tokens the state
// before it and the identity. A block takes a few rows of L or of M.
//
// Bound: latency, as segments follow one another: 0.8 us each on an H200 where few heads have segments.
#pragma once

#include <gdn_cuda/kernels/gdn/compose.cuh>
#include <gdn_cuda/kernels/gdn/summary/tails.cuh>

namespace gdn_cuda::gdn {

template <SummaryFoldConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads()) summary_fold(const __grid_constant__ SummaryFoldArgs args) {
    using Rows = ComposedRows<kConfig.columns, kConfig.rows, kConfig.kParts>;
    __shared__ typename Rows::Shared shared;
    const int first_row = static_cast<int>(blockIdx.y) * kConfig.rows;
    const bool is_transition = first_row >= args.padded_dv;
    const i64 pair = blockIdx.x, dk = args.dk, below = args.dv * dk;
    const SummaryTail tail = args.tails[pair];
    const auto pair_state = [&](const RecurrentStates& states) {
        const unsigned heads = args.heads, sequence = blockIdx.x / heads;
        return static_cast<float*>(states.data) + sequence * states.slot + (blockIdx.x - sequence * heads) * states.head;
    };
    const auto out = [&] { return pair_state(args.out) + (is_transition ? below : 0); };  // registers are short
    Rows rows(shared, args.dk, first_row - (is_transition ? args.padded_dv : 0), is_transition ? args.dk : args.dv);

    float found[Rows::kOwn];
    if (tail.segments == 0 || (is_transition && tail.first_chunk > 0)) {
        rows.load_rows(is_transition || args.state.data == nullptr ? nullptr : pair_state(args.state));
#pragma unroll
        for (int row = 0; row < Rows::kOwn; ++row) {
            const bool is_one = is_transition && tail.segments == 0 && rows.first + row == rows.column;
            found[row] = is_one ? 1.f : rows.added[row];
        }
        return rows.store_rows(out(), found);
    }
    if (tail.segments == 1) return;  // gdn/summary has written it
    const float* result = args.results + tail.first_result * (below + dk * dk);
    const auto load_next = [&] {
        rows.load_transition(result + below);
        rows.load_rows(is_transition ? nullptr : result);
        result += below + dk * dk;
    };
    rows.load_rows(out());
    rows.begin();
    load_next();
#pragma unroll 1
    for (int segment = 1; segment < tail.segments; ++segment)
        rows.follow(found, [&] {
            if (segment + 1 < tail.segments) load_next();
        });
    rows.store_rows(out(), found);
}

}  // namespace gdn_cuda::gdn
