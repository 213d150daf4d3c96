// scan/selective_step: one or a few tokens of every sequence of a selective scan; updates the states of a pool in place. The
// serving step of Mamba layers.
//
//     x <- Ā x + B̄ u        y = Σ_n C x + D u, times silu(z)
//
// A row is one channel of one sequence: N state elements, spread over 1 to 32 lanes. A block computes the same rows of up to 32
// sequences, and so loads A once for all of them; or it computes several tokens of one sequence, whose state stays in
// registers. It iterates over these items (sequences, or tokens), four or eight at a time. δ, x, z, B and C are converted to
// fp32 in shared memory. Outputs take the same way back: one thread for each row and item adds D u, applies the gate and
// stores.
//
// Loads for the next items are in flight while the current ones are computed. States are copied to shared memory by cp.async,
// each vector by the thread that will use it; once a state is in registers, a later sequence's state is copied to its place. B
// and C are copied the same way if their rows consist of 16-byte vectors. x, δ and z are loaded to registers.
//
// Ā and B̄ have full fp32 accuracy (exact_step.cuh). They are computed for each state element, or once per row if A is the same
// for the whole row, as in Mamba-2.
//
// Bound: memory, the state read and written once, while a state element takes fewer than 50 instructions (fp32) or 25 (16
// bits). Small batches: latency, of loading the slot and then the state. docs/benchmarks/scan.md has the measured share.
#pragma once

#include <gdn_cuda/kernels/scan/selective_step/columns.cuh>
#include <gdn_cuda/kernels/scan/selective_step/recurrence.cuh>
#include <gdn_cuda/kernels/scan/selective_step/rows.cuh>
#include <gdn_cuda/kernels/scan/selective_step/states.cuh>

namespace gdn_cuda::scan {

template <SelectiveStepConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.blocks_at_least(kCompiledCapability))
    selective_step(const __grid_constant__ SelectiveStepArgs args) {
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<SelectiveStepSharedPlan<kConfig>*>(memory);

    const int first_sequence = static_cast<int>(blockIdx.z) * args.block_sequences;
    const int sequences = min(args.block_sequences, args.sequences - first_sequence);
    const bool one_token = args.tokens == 1;
    static_assert(kConfig.items_at_once(kConfig.fewest_lanes()) >= kGroupsInFlight);
    const int at_once = kConfig.items_at_once(1 << args.lane_bits);
    const int thread = static_cast<int>(threadIdx.x), rows = kConfig.threads() >> args.lane_bits;
    const int first_item = thread >> (31 - __clz(rows));
    // `lane`: the row and slice of it whose state this thread has. `mine`: the row whose inputs and outputs it moves.
    const StepLane<kConfig> lane(args, thread >> args.lane_bits, thread & ((1 << args.lane_bits) - 1));
    const StepLane<kConfig> mine(args, thread & (rows - 1), 0);
    StepItems items{one_token, first_sequence, first_sequence, one_token ? sequences : args.tokens, 0, 0};

    find_states<kConfig>(shared, args, first_sequence, sequences);
    __syncthreads();
    const int fetched = lane.works(args.columns) ? min(sequences, at_once) : 0;
#pragma unroll 1
    for (int item = 0; item < fetched; ++item)
        fetch_state<kConfig>(shared.items[item], lane, shared.from[item], lane.state_offset(args), args.columns);
    RowPlaces places = RowPlaces::of<kConfig>(args, mine, items, first_item);
    RowsInFlight<kConfig> rows_in_flight;
    // rglru has no B to copy.
    const bool column_units = kConfig.column_units() && args.discretization != Discretization::rglru && args.column_units;
    const auto start_loads = [&](int first) {
        const int count = min(at_once, items.all - first);
        rows_in_flight.load(args, places, mine.items_of(args, first_item, count));
        places.move_inputs(args, at_once);
        if (column_units) fetch_columns<kConfig>(shared, args, items, first, count);
        cp_async_fence();
    };
    start_loads(0);
    const float D = row_scalar(args.D, mine), bias = row_scalar(args.bias, mine);
    typename StepTypes<kConfig>::Number A[kConfig.elements()], state[kConfig.elements()];
    load_A<kConfig>(args, lane, A);

#pragma unroll 1
    for (; items.first < items.all; items.first += at_once) {
        items.count = min(at_once, items.all - items.first);
        stage_rows<kConfig>(shared, args, mine, rows_in_flight, bias, first_item, items);
        if (thread < items.count) {
            auto& item = shared.items[thread];
            const int later = items.first + at_once + thread;
            item.to =
                kept_state<kConfig>(args, shared.from[items.in_block(thread)], items.sequence(thread), items.token(thread));
            item.later = one_token && later < sequences ? shared.from[later] : nullptr;
        }
        if (items.first == 0)  // B and C are the most recent group
            cp_async_wait<0>();
        else
            cp_async_wait<kGroupsInFlight>();
        if (column_units)
            widen_columns<kConfig>(shared, args, items);
        else
            stage_columns<kConfig>(shared, args, items);
        start_loads(items.first + at_once);
        __syncthreads();
        advance<kConfig>(shared, args, lane, items, A, state);
        __syncthreads();
        store_outputs<kConfig>(shared, args, mine, places, D, first_item, items);
        places.move_output(args, at_once);
    }
}

}  // namespace gdn_cuda::scan
