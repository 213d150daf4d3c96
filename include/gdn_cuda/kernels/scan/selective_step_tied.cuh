// scan/selective_step_tied: one token of every sequence, where A has one value for a row, as in Mamba-2: one Ā for a row, not
// one for each of its N elements. Results are the same bits as those of scan/selective_step.
//
//     x <- e^(δ A) x + δ u B        y = Σ_n C x + D u, times silu(z)
//
// A row is one channel of one sequence, spread over 4 to 16 lanes. A block computes consecutive rows of one group in steps, of
// all its threads each, with B and C in registers for all of them. Lane j of a row's lanes computes the scalars of the row of
// step j, and stores its output; the lanes get them by shuffles. States pass through a ring in shared memory, as in gdn/decode:
// each thread copies by cp.async what it will use itself, so there are no barriers.
//
// The loop over steps takes 8 instructions a state element, as that of scan/selective_step, without what that kernel has around
// it: two barriers for every four sequences, and B and C by way of shared memory.
//
// int8 states (coded.cuh) have a scale for 32 columns, which two lanes hold. The decay multiplies the scale, the sum C x is
// that before rounding, and the new scale is that of the largest element: 13 instructions an element, which bound it; 73 % of
// what its bytes take for 256 sequences of 128 x 64. Most such calls are those of scan/selective_step_codes.
//
// Bound: memory, the state read and written once. Measured on an H200 with N = 128: 85 to 93 % of a copy's bandwidth with fp32
// states from 64 sequences on, 79 to 93 % with bf16 (docs/benchmarks/scan.md).
#pragma once

#include <gdn_cuda/kernels/common/dependent_launch.cuh>
#include <gdn_cuda/kernels/scan/selective_step/coded.cuh>
#include <gdn_cuda/kernels/scan/selective_step/rows.cuh>

namespace gdn_cuda::scan {

// Loads a lane's elements of B or C, in fp32.
template <TiedStepConfig kConfig>
__device__ __forceinline__ void load_tied_columns(float (&to)[kConfig.row().elements()], const SelectiveStepArgs& args,
                                                  const SelectiveStepArgs::ByColumn& x, int sequence, int lane) {
    constexpr int kVector = kConfig.row().vector, kVectors = kConfig.row().vectors;
    const char* from = static_cast<const char*>(x.values.data) + (sequence * x.sequence + blockIdx.y * x.group);
    const auto load_as = [&]<class T>(T) {
        gdn_cuda::Vector<T, kVector, true> vectors[kVectors];
#pragma unroll
        for (int v = 0; v < kVectors; ++v) vectors[v].load(reinterpret_cast<const T*>(from) + tied_column<kConfig>(v, lane));
#pragma unroll
        for (int i = 0; i < kConfig.row().elements(); ++i) to[i] = element_at(vectors[i / kVector], i % kVector);
    };
    if (!args.column_units) {
#pragma unroll
        for (int i = 0; i < kConfig.row().elements(); ++i)
            to[i] = load_raw_element(from + (tied_column<kConfig>(i / kVector, lane) + i % kVector) * x.n, x.values)
                        .to_float(x.values.type);
    } else if (x.values.type == DType::f32) {
        load_as(float{});
    } else if (x.values.type == DType::bf16) {
        load_as(__nv_bfloat16{});
    } else {
        load_as(__half{});
    }
}

// A row as the lane that computes its scalars has it. The values are in flight until they are converted.
template <TiedStepConfig kConfig>
struct TiedRow {
    const SelectiveStepArgs& args;
    int sequence, head, d;
    bool exists;
    RawElement x, delta, delta_a, z, bias, D;
    float A = 0.f;

    __device__ __forceinline__ TiedRow(const SelectiveStepArgs& args, int sequence, int row_in_group, bool exists)
        : args(args), sequence(sequence), exists(exists) {
        const int row = static_cast<int>(blockIdx.y) * args.group_rows + (exists ? row_in_group : 0);
        head = args.heads == 1 ? 0 : static_cast<int>(static_cast<unsigned>(row) / static_cast<unsigned>(args.dim));
        d = row - head * args.dim;
    }
    __device__ __forceinline__ char* token(const SelectiveStepArgs::ByRow& of) const {
        return static_cast<char*>(const_cast<void*>(of.values.data)) + (sequence * of.sequence + head * of.head + d * of.d);
    }
    __device__ __forceinline__ void load() {
        const auto load_token = [&](RawElement& to, const SelectiveStepArgs::ByRow& from) {
            if (from.values.data != nullptr) to.load(token(from), from.values.type == DType::f32);
        };
        const auto load_constant = [&](RawElement& to, const SelectiveStepArgs::PerRow& from) {
            if (from.values.data != nullptr)
                to.load(static_cast<const char*>(from.values.data) + (head * from.head + d * from.d),
                        from.values.type == DType::f32);
        };
        load_token(x, args.x);
        load_token(delta, args.delta);
        load_token(delta_a, args.delta_a);
        load_token(z, args.z);
        load_constant(bias, args.bias);
        load_constant(D, args.D);
        A = static_cast<const float*>(args.A)[head * args.A_head + d * args.A_d];
    }
    __device__ __forceinline__ StepRow scalars() const {
        StepRow row = row_of_token(args, delta.to_float(args.delta.values.type) + bias.to_float(args.bias.values.type),
                                   x.to_float(args.x.values.type), z.to_float(args.z.values.type));
        if (args.delta_a.values.data != nullptr) row.delta_a = delta_a.to_float(args.delta_a.values.type);
        return row;
    }
    __device__ __forceinline__ void store(const StepRow& row, float sum, Place place) const {
        if (exists)
            store_float(token(args.out), args.x.values.type,
                        output_of<kConfig.row()>(args, sum, row, D.to_float(args.D.values.type), place));
    }
};

// The state to store, if the sequence's state is `from`; null: none. Codes go to the pool alone.
template <TiedStepConfig kConfig>
__device__ __forceinline__ StateInPool<kConfig> state_to_store(const SelectiveStepArgs& args, StateInPool<kConfig> from,
                                                               int sequence) {
    if constexpr (!kConfig.coded()) {
        return static_cast<char*>(kept_state<kConfig.row()>(args, from, sequence, 0));
    } else {
        if (args.kept == SelectiveStepArgs::none) return {};
        if (args.to.rows.data == nullptr) return from;
        const i64 slot = row_in(args.to, sequence, 0);
        return slot < 0 ? StateInPool<kConfig>{} : state_in_pool<kConfig>(args, slot);
    }
}

template <TiedStepConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.blocks_at_least())
    selective_step_tied(const __grid_constant__ SelectiveStepArgs args) {
    constexpr SelectiveStepConfig kRow = kConfig.row();
    constexpr int kLanes = kConfig.lanes(), kRowsPerStep = kConfig.rows_per_step();
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<TiedStepSharedPlan<kConfig>*>(memory);

    wait_on_dependent_grids();
    const int sequence = static_cast<int>(blockIdx.z), thread = static_cast<int>(threadIdx.x), lane = thread % kLanes;
    SlotInFlight loading;
    loading.load(args, sequence);
    const int first_row = static_cast<int>(blockIdx.x) * (args.row_steps * kRowsPerStep) + thread / kLanes;
    const auto in_range = [&](int step) { return step < args.row_steps && first_row + step * kRowsPerStep < args.group_rows; };
    TiedRow<kConfig> mine(args, sequence, first_row + lane * kRowsPerStep, in_range(lane));
    mine.load();
    i64 slot;
    const Place place = loading.place(args, slot);
    if (place != Place::run) return mine.store({}, 0.f, place);

    const StateInPool<kConfig> state_of_slot = state_in_pool<kConfig>(args, slot);
    const i64 group_offset = blockIdx.y * static_cast<i64>(args.group_rows) * kConfig.row_bytes();
    StepRows<kConfig> rows(shared, state_of_slot + group_offset, thread, first_row,
                           min(args.group_rows, (static_cast<int>(blockIdx.x) + 1) * args.row_steps * kRowsPerStep));
    rows.start();
    StateInPool<kConfig> to = state_to_store<kConfig>(args, state_of_slot, sequence);
    if (to) to = to + (group_offset + rows.offset());

    float B[kRow.elements()], C[kRow.elements()];
    load_tied_columns<kConfig>(B, args, args.B, sequence, lane);
    load_tied_columns<kConfig>(C, args, args.C, sequence, lane);
    const StepRow row = mine.scalars();
    const ExactStep<float> by = CompiledStep<kRow, Discretization::mamba>{}(row.delta, row.delta_a, mine.A);
    const float sum = rows.advance(0, args.row_steps, by.decay, by.gain * row.u, B, C, to);
    launch_dependent_grids();
    mine.store(row, sum, place);
}

}  // namespace gdn_cuda::scan
