// layers/mamba2_decode_layer: a Mamba-2 layer's step between its projections, for one token of every sequence; states in pools
// are updated in place.
//
//     x, B, C <- silu(conv(x, B, C))        δ = clamp(softplus(dt + dt_bias))
//     S <- e^(δ A) S + δ x B^T        out = S C + D x, times silu(z)
//
// The rows of a group (its heads' channels) are divided among up to eight blocks, which form a cluster. Every block computes
// the convolution of the group's B and C, and so may write its slice of their state only after all have read it: they arrive
// early and wait late. Each row's x has a thread of its own, which writes that state as soon as it has read it.
//
// Rows are computed in steps, as in scan/selective_step_tied: lane j of a row's lanes computes the convolution and the scalars
// of the row of step j. With more steps than lanes, the next ones follow, while the ring of states stays full.
//
// x, B and C are rounded as causal_conv1d_update rounds them, and sums have the order of selective_state_update, so states are
// those of the two operators in sequence.
//
// Bound: memory, the state read and written once; the projections and the convolution's state are 2 % of the bytes (64 heads of
// 64 channels, 8 groups, 128 states in fp32). Few sequences: latency of the slot, the convolution's state, then the state.
// Measured on an H200: 70 to 87 % of a copy's bandwidth for 64 and 256 sequences of 8 groups (docs/benchmarks/scan.md).
#pragma once

#include <gdn_cuda/kernels/common/block_group.cuh>
#include <gdn_cuda/kernels/common/dependent_launch.cuh>
#include <gdn_cuda/kernels/common/state_slots.cuh>
#include <gdn_cuda/kernels/conv/causal_step/common.cuh>
#include <gdn_cuda/kernels/layers/mamba2_decode_layer_plan.cuh>
#include <gdn_cuda/kernels/scan/selective_step/coded.cuh>

namespace gdn_cuda::layers {

__device__ __forceinline__ float rounded(float x, DType type) {
    if (type == DType::f32) return x;
    return type == DType::bf16 ? to_float(from_float<__nv_bfloat16>(x)) : to_float(from_float<__half>(x));
}

// One channel of a sequence's convolution; `channel` counts those of x, B and C.
struct Mamba2Channel {
    static constexpr int kHistory = kMamba2Taps - 1;

    int channel;
    RawElements<kMamba2Taps> taps;
    RawElements<kHistory> history;
    RawElements<1> x, bias;

    // Offset of the channel's oldest column in the state of a slot.
    __device__ __forceinline__ i64 state(const Mamba2LayerArgs& args, i64 slot) const {
        return slot * args.conv.slot + channel * args.conv.channel;
    }
    // Starts loads, which `output` and `push` await.
    __device__ __forceinline__ void load(const Mamba2LayerArgs& args, int sequence, i64 slot, int from) {
        channel = from;
        x.load(args.xBC.values, sequence * args.xBC.sequence + channel * args.xBC.channel, 0);
        history.load(args.conv.values, state(args, slot) + (args.conv_columns - kHistory) * static_cast<i64>(args.conv.column),
                     args.conv.column);
        taps.load(args.weight, channel * args.weight_channel, args.weight_tap);
        if (args.bias.data != nullptr) bias.load(args.bias, channel * args.bias_channel, 0);
    }
    // Rounded to the dtype of the inputs.
    __device__ __forceinline__ float output(const Mamba2LayerArgs& args) const {
        float y[1] = {args.bias.data == nullptr ? 0.f : bias.to_float(0, args.bias.type)};
#pragma unroll
        for (int k = 0; k < kHistory; ++k)
            y[0] = fmaf(taps.to_float(k, args.weight.type), history.to_float(k, args.conv.values.type), y[0]);
        y[0] = fmaf(taps.to_float(kHistory, args.weight.type), x.to_float(0, args.xBC.values.type), y[0]);
        if (args.xBC.values.type == DType::f32)
            conv::activate<DType::f32>(y, args.silu);
        else
            conv::activate<DType::bf16>(y, args.silu);
        return rounded(y[0], args.xBC.values.type);
    }
    // Pushes the input into the state. No other thread reads the channel's state any more.
    __device__ __forceinline__ void push(const Mamba2LayerArgs& args, i64 slot) const {
        const i64 first = state(args, slot);
        const auto at = [&](int column) { return first + column * static_cast<i64>(args.conv.column); };
        const int columns = args.conv_columns;
        // Columns before the last three move by one; those that were loaded are stored.
#pragma unroll 1
        for (int column = 0; column < columns - kHistory; ++column)
            store_float(args.conv.values, at(column), load_float(args.conv.values, at(column + 1)));
#pragma unroll
        for (int i = 0; i + 1 < kHistory; ++i)
            store_float(args.conv.values, at(columns - kHistory + i), history.to_float(i + 1, args.conv.values.type));
        store_float(args.conv.values, at(columns - 1), x.to_float(0, args.xBC.values.type));
    }
};

// A row and its scalars, as the lane that computes them has them.
struct Mamba2Row {
    int sequence, row, head, d;
    bool exists;
    Mamba2Channel channel;
    RawElements<1> dt, dt_bias, A;
    float x = 0.f;
    scan::ExactStep<float> by{};

    __device__ __forceinline__ Mamba2Row(const Mamba2LayerArgs& args, int sequence, int row, bool exists)
        : sequence(sequence), row(row), exists(exists) {
        head = static_cast<int>(static_cast<unsigned>(row) / static_cast<unsigned>(args.dim));
        d = row - head * args.dim;
    }
    __device__ __forceinline__ void load(const Mamba2LayerArgs& args, i64 slot) {
        if (!exists) return;
        channel.load(args, sequence, slot, row);
        dt.load(args.dt.values, sequence * args.dt.sequence + head * args.dt.channel, 0);
        A.load(args.A.values, head * args.A.head, 0);
        if (args.dt_bias.values.data != nullptr) dt_bias.load(args.dt_bias.values, head * args.dt_bias.head, 0);
    }
    // Computes x, whose state it updates, and the decay.
    template <scan::SelectiveStepConfig kRow>
    __device__ __forceinline__ void run(const Mamba2LayerArgs& args, i64 slot) {
        if (!exists) return;
        float raw = dt.to_float(0, args.dt.values.type);
        if (args.dt_bias.values.data != nullptr) raw += dt_bias.to_float(0, args.dt_bias.values.type);
        const float delta = at_most(at_least(args.softplus ? scan::softplus_fast(raw) : raw, args.lowest), args.highest);
        by = scan::CompiledStep<kRow, Discretization::mamba>{}(delta, delta, A.to_float(0, args.A.values.type));
        x = channel.output(args);
        channel.push(args, slot);
    }
    __device__ __forceinline__ void store(const Mamba2LayerArgs& args, float y) const {
        store_float(args.out.values, sequence * args.out.sequence + row * args.out.channel, y);
    }
    __device__ __forceinline__ void finish(const Mamba2LayerArgs& args, float sum) const {
        if (!exists) return;
        float y = sum;
        if (args.D.values.data != nullptr) y = fmaf(load_float(args.D.values, head * args.D.head + d * args.D.d), x, sum);
        if (args.z.values.data != nullptr)
            y *= scan::silu_fast(load_float(args.z.values, sequence * args.z.sequence + row * args.z.channel));
        store(args, y);
    }
};

// The channel of column n of a group's B and C: those of B, then those of C.
__device__ __forceinline__ int column_channel(const Mamba2LayerArgs& args, int group, int n, int states) {
    const int is_C = n >= states;
    return args.heads * args.dim + (is_C * args.groups + group) * states + n - is_C * states;
}

// Fills the outputs of a sequence without a state.
__device__ __forceinline__ void fill_rows(const Mamba2LayerArgs& args, int sequence, int first, int end, float y) {
#pragma unroll 1
    for (int row = first + static_cast<int>(threadIdx.x); row < end; row += static_cast<int>(blockDim.x))
        Mamba2Row(args, sequence, row, true).store(args, y);
}

template <TiedStepConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 4) mamba2_decode_layer(const __grid_constant__ Mamba2LayerArgs args) {
    constexpr scan::SelectiveStepConfig kRow = kConfig.row();
    constexpr int kLanes = kConfig.lanes(), kRowsPerStep = kConfig.rows_per_step();
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<Mamba2LayerSharedPlan<kConfig>*>(memory);

    wait_on_dependent_grids();
    const BlockGroup cluster(args.parts);
    const int sequence = cluster.index, group = static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x);
    SlotInFlight loading;
    loading.load(args, sequence);
    const int group_row = group * args.group_rows, first_row = cluster.rank * args.part_rows;
    const int end = min(first_row + args.part_rows, args.group_rows);
    i64 slot;
    const Place place = loading.place(args, slot);
    if (place != Place::run) {  // in all blocks of the cluster
        fill_rows(args, sequence, group_row + first_row, group_row + end, place == Place::skip ? 0.f : quiet_nan());
        return;
    }

    const scan::StateInPool<kConfig> rows_of_group =
        scan::state_in_pool<kConfig>(args, slot) + group_row * static_cast<i64>(kConfig.row_bytes());
    const int lane = thread % kLanes, own_row = first_row + thread / kLanes;
    const int steps = (end - first_row + kRowsPerStep - 1) / kRowsPerStep;
    const auto row_of_round = [&](int step) {
        const int row = own_row + (step + lane) * kRowsPerStep;
        return Mamba2Row(args, sequence, group_row + row, step + lane < steps && row < end);
    };
    // The convolution's state before the ring's loads, which would delay it.
    constexpr int kPerThread = 2 * kConfig.columns / kConfig.threads();
    Mamba2Channel columns[kPerThread];
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
        const int channel = column_channel(args, group, i * kConfig.threads() + thread, kConfig.columns);
        columns[i].load(args, sequence, slot, channel);
    }
    Mamba2Row mine = row_of_round(0);
    mine.load(args, slot);
    const scan::StepRows<kConfig> rows(shared.ring, rows_of_group, thread, own_row, end);
    rows.start();
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) shared.columns[i * kConfig.threads() + thread] = columns[i].output(args);
    __syncthreads();
    cluster.arrive();  // this block has read the convolution's state of B and C
    float B[kRow.elements()], C[kRow.elements()];
#pragma unroll
    for (int i = 0; i < kRow.elements(); ++i) {
        const int column = scan::tied_column<kConfig>(i / kRow.vector, lane) + i % kRow.vector;
        B[i] = shared.columns[column], C[i] = shared.columns[kConfig.columns + column];
    }

    const scan::StateInPool<kConfig> to = rows_of_group + rows.offset();
#pragma unroll 1
    for (int step = 0; step < steps; step += kLanes) {
        if (step > 0) {
            mine = row_of_round(step);
            mine.load(args, slot);
        }
        mine.run<kRow>(args, slot);
        const int count = min(kLanes, steps - step);
        mine.finish(args, rows.advance(step, count, mine.by.decay, mine.by.gain * mine.x, B, C, to));
    }

    __syncwarp();
    cluster.wait();
    const int slice = (2 * kConfig.columns + cluster.size - 1) / cluster.size;
#pragma unroll 1
    for (int n = cluster.rank * slice + thread; n < min((cluster.rank + 1) * slice, 2 * kConfig.columns);
         n += kConfig.threads()) {
        Mamba2Channel column;
        column.load(args, sequence, slot, column_channel(args, group, n, kConfig.columns));
        column.push(args, slot);
    }
    launch_dependent_grids();
}

}  // namespace gdn_cuda::layers
