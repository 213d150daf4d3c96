// scan/selective_step: one token or a few of every sequence of a selective scan, with states of a pool updated in place. The
// serving step of Mamba layers.
//
//     x <- Ā x + B̄ u        y = Σ_n C x + D u, times silu(z)
//
// A row is one channel of one sequence: N numbers of the state, for a group of 1 to 32 lanes. A block takes the same rows of up
// to 32 sequences, so A is loaded once for all of them, or of one sequence with several tokens, whose state stays in registers
// from the first to the last. It has four or eight items at a time, which are sequences or tokens. δ, x, z (a thread each row
// and item), B and C are converted to fp32 in shared memory. Outputs go back the same way: a thread each row and item adds D u,
// applies the gate and stores.
//
// What later items need is in flight while the present ones are computed. States are copied to shared memory by cp.async, each
// part by the thread that will use it; once a state is in registers, that of a later sequence takes its place. B and C are
// copied so too, where their rows consist of 16-byte units. x, δ and z are loaded to registers.
//
// The transition is computed to full fp32 accuracy (exact_step.cuh), one for each number of the state, or one for each
// row where A does not vary along it, as in Mamba-2.
//
// Bound: the state's bytes, read and written once, as long as a number takes fewer than 50 instructions of fp32, or 25 of 16
// bits. Small batches: latency, of the slot and then of the state.
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
    // Whose state this thread has, and whose inputs and outputs it moves.
    const StepLane<kConfig> lane(args, thread >> args.lane_bits, thread & ((1 << args.lane_bits) - 1));
    const StepLane<kConfig> mine(args, thread & (rows - 1), 0);
    StepItems items{one_token, first_sequence, one_token ? sequences : args.tokens, 0, 0};

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
    const auto of_row = [&](const SelectiveStepArgs::PerRow& of) {
        if (of.values.data == nullptr || !mine.exists) return 0.f;
        const char* from = static_cast<const char*>(of.values.data) + mine.head * of.head + mine.d * of.d;
        return load_raw_number(from, of.values).number(of.values.type);
    };
    const float D = of_row(args.D), bias = of_row(args.bias);
    typename StepTypes<kConfig>::Number A[kConfig.elements()], state[kConfig.elements()];
    load_A<kConfig>(args, lane, A);

#pragma unroll 1
    for (; items.first < items.all; items.first += at_once) {
        items.count = min(at_once, items.all - items.first);
        stage_rows<kConfig>(shared, args, mine, rows_in_flight, bias, first_item, items);
        if (thread < items.count) {
            auto& item = shared.items[thread];
            const int later = items.first + at_once + thread;
            item.to = kept_state<kConfig>(shared, args, items, thread);
            item.later = one_token && later < sequences ? shared.from[later] : nullptr;
        }
        if (items.first == 0)  // B and C are the latest group
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
