// scan/selective_step_tokens: the tokens of every sequence of a selective scan, in packed batches, in trees, and with the last
// state beside those after every token: what engines verify drafts with. Results are the same bits as those of
// scan/selective_step.
//
// A block computes rows of one sequence, as scan/selective_step does for several tokens: four at a time, whose δ, x, z, B and C
// are in shared memory, while loads of the next four are in flight, with the state in registers. In a tree a token whose parent
// is not the token before it loads its state from where the parent's was stored.
//
// Bound: memory, the state read once and written once or after every token. Few sequences: latency, of the slot and the state,
// then of each token. Its share was not measured.
#pragma once

#include <gdn_cuda/kernels/common/varlen.cuh>
#include <gdn_cuda/kernels/scan/selective_step/columns.cuh>
#include <gdn_cuda/kernels/scan/selective_step/rows.cuh>
#include <gdn_cuda/kernels/scan/selective_step/tokens.cuh>

namespace gdn_cuda::scan {

template <SelectiveStepConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.blocks_at_least(kCompiledCapability))
    selective_step_tokens(const __grid_constant__ SelectiveStepArgs args) {
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<SelectiveStepSharedPlan<kConfig>*>(memory);

    const int sequence = static_cast<int>(blockIdx.z);
    const Span span = span_of(args.cu_seqlens, sequence, args.tokens);
    const bool packed = args.cu_seqlens.data != nullptr;
    const int at_once = kConfig.items_at_once(1 << args.lane_bits);
    const int thread = static_cast<int>(threadIdx.x), rows = kConfig.threads() >> args.lane_bits;
    const int first_item = thread >> (31 - __clz(rows));
    // As in scan/selective_step.
    const StepLane<kConfig> lane(args, thread >> args.lane_bits, thread & ((1 << args.lane_bits) - 1));
    const StepLane<kConfig> mine(args, thread & (rows - 1), 0);
    const float D = row_scalar(args.D, mine);
    if (packed && sequence == args.sequences - 1) clear_outputs(args, mine, span.start + span.length + first_item);
    if (span.length == 0 && args.last_to.rows.data == nullptr) return;  // the slot has the state already

    StepItems items{false, sequence, packed ? static_cast<int>(span.start) : sequence, span.length, 0, 0};
    find_states<kConfig>(shared, args, sequence, 1);
    __syncthreads();
    const void* const from = shared.from[0];
    const i64 offset = lane.state_offset(args);
    if (lane.works(args.columns)) fetch_state<kConfig>(shared.items[0], lane, from, offset, args.columns);
    RowPlaces places = RowPlaces::of<kConfig>(args, mine, items, first_item);
    RowsInFlight<kConfig> rows_in_flight;
    const bool column_units = kConfig.column_units() && args.discretization != Discretization::rglru && args.column_units;
    const auto start_loads = [&](int first) {
        const int count = min(at_once, items.all - first);
        rows_in_flight.load(args, places, mine.items_of(args, first_item, count));
        places.move_inputs(args, at_once);
        if (column_units) fetch_columns<kConfig>(shared, args, items, first, count);
        cp_async_fence();
    };
    start_loads(0);
    const float bias = row_scalar(args.bias, mine);
    typename StepTypes<kConfig>::Number A[kConfig.elements()], state[kConfig.elements()];
    load_A<kConfig>(args, lane, A);
    cp_async_wait<0>();
    if (lane.works(args.columns)) load_state<kConfig>(shared.items[0], from, lane, offset, args.columns, state);
    Tree tree;

#pragma unroll 1
    for (; items.first < items.all; items.first += at_once) {
        items.count = min(at_once, items.all - items.first);
        stage_rows<kConfig>(shared, args, mine, rows_in_flight, bias, first_item, items);
        find_places<kConfig>(shared, args, items, tree);
        cp_async_wait<0>();
        if (column_units)
            widen_columns<kConfig>(shared, args, items);
        else
            stage_columns<kConfig>(shared, args, items);
        start_loads(items.first + at_once);
        __syncthreads();
        advance_tokens<kConfig>(shared, args, lane, items, A, state);
        __syncthreads();
        store_outputs<kConfig>(shared, args, mine, places, D, first_item, items);
        places.move_output(args, at_once);
    }
    if (args.last_to.states != nullptr && from != nullptr && lane.works(args.columns))
        store_state<kConfig>(place_in<kConfig>(args.last_to, from, sequence, 0), lane, offset, args.columns, state);
}

}  // namespace gdn_cuda::scan
