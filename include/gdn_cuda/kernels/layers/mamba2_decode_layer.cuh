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
// 64 channels, 8 groups, 128 states in fp32). Few sequences: latency of the slot, the convolution's state, then the state. Its
// share was not measured.
#pragma once

#include <gdn_cuda/kernels/common/block_group.cuh>
#include <gdn_cuda/kernels/common/dependent_launch.cuh>
#include <gdn_cuda/kernels/common/state_slots.cuh>
#include <gdn_cuda/kernels/conv/causal_step/common.cuh>
#include <gdn_cuda/kernels/layers/mamba2_decode_layer_plan.cuh>
#include <gdn_cuda/kernels/scan/selective_step/tied.cuh>

namespace gdn_cuda::layers {

__device__ __forceinline__ float rounded(float x, DType type) {
    if (type == DType::f32) return x;
    return type == DType::bf16 ? to_float(from_float<__nv_bfloat16>(x)) : to_float(from_float<__half>(x));
}

// One channel of the convolution. `channel` counts those of x, B and C.
struct Mamba2Channel {
    static constexpr int kHistory = kMamba2Taps - 1;

    const Mamba2LayerArgs& args;
    int sequence, channel;
    RawElements<kMamba2Taps> taps;
    RawElements<kHistory> history;
    RawElements<1> x, bias;

    __device__ __forceinline__ Mamba2Channel(const Mamba2LayerArgs& args, int sequence, int channel)
        : args(args), sequence(sequence), channel(channel) {}

    // Offset of the channel's oldest column in the state of a slot.
    __device__ __forceinline__ i64 state(i64 slot) const { return slot * args.conv.slot + channel * args.conv.channel; }
    __device__ __forceinline__ void load(i64 slot) {
        x.load(args.xBC.values, sequence * args.xBC.sequence + channel * args.xBC.channel, 0);
        history.load(args.conv.values, state(slot) + (args.conv_columns - kHistory) * static_cast<i64>(args.conv.column),
                     args.conv.column);
        taps.load(args.weight, channel * args.weight_channel, args.weight_tap);
        if (args.bias.data != nullptr) bias.load(args.bias, channel * args.bias_channel, 0);
    }
    __device__ __forceinline__ float input() const { return x.to_float(0, args.xBC.values.type); }
    // The output, rounded to the dtype of the inputs.
    __device__ __forceinline__ float output() const {
        float y[1] = {args.bias.data == nullptr ? 0.f : bias.to_float(0, args.bias.type)};
#pragma unroll
        for (int k = 0; k < kHistory; ++k)
            y[0] = fmaf(taps.to_float(k, args.weight.type), history.to_float(k, args.conv.values.type), y[0]);
        y[0] = fmaf(taps.to_float(kHistory, args.weight.type), input(), y[0]);
        if (args.xBC.values.type == DType::f32)
            conv::activate<DType::f32>(y, args.silu);
        else
            conv::activate<DType::bf16>(y, args.silu);
        return rounded(y[0], args.xBC.values.type);
    }
    // Pushes the input into the state. No other thread reads the channel's state any more.
    __device__ __forceinline__ void push(i64 slot, float input) const {
        const i64 first = state(slot);
        const auto at = [&](int column) { return first + column * static_cast<i64>(args.conv.column); };
#pragma unroll 1
        for (int column = 0; column + 1 < args.conv_columns; ++column)
            store_float(args.conv.values, at(column), load_float(args.conv.values, at(column + 1)));
        store_float(args.conv.values, at(args.conv_columns - 1), input);
    }
};

// The channel of B (which = 0) or C (1) for state n of a group.
__device__ __forceinline__ int column_channel(const Mamba2LayerArgs& args, int which, int group, int n, int states) {
    return args.heads * args.dim + (which * args.groups + group) * states + n;
}

// The scalars of a row, as the lane that computes them has them.
struct Mamba2Row {
    const Mamba2LayerArgs& args;
    int sequence, row, head, d;
    bool exists;
    float x = 0.f;
    scan::ExactStep<float> by{};

    __device__ __forceinline__ Mamba2Row(const Mamba2LayerArgs& args, int sequence, int row, bool exists)
        : args(args), sequence(sequence), row(row), exists(exists) {
        head = static_cast<int>(static_cast<unsigned>(row) / static_cast<unsigned>(args.dim));
        d = row - head * args.dim;
    }
    __device__ __forceinline__ float constant(const Mamba2LayerArgs::Constants& of) const {
        return of.values.data == nullptr ? 0.f : load_float(of.values, head * of.head + d * of.d);
    }
    // Computes the convolution of x, whose state it updates, and the decay.
    template <scan::SelectiveStepConfig kRow>
    __device__ __forceinline__ void run(i64 slot) {
        if (!exists) return;
        Mamba2Channel channel(args, sequence, row);
        channel.load(slot);
        const float dt = load_float(args.dt.values, sequence * args.dt.sequence + head * args.dt.channel);
        const float A = constant(args.A), raw = dt + constant(args.dt_bias);
        const float delta = at_most(at_least(args.softplus ? scan::softplus_fast(raw) : raw, args.lowest), args.highest);
        x = channel.output();
        channel.push(slot, channel.input());
        by = scan::CompiledStep<kRow, Discretization::mamba>{}(delta, delta, A);
    }
    __device__ __forceinline__ void store(float y) const {
        store_float(args.out.values, sequence * args.out.sequence + row * args.out.channel, y);
    }
    __device__ __forceinline__ void finish(float sum) const {
        if (!exists) return;
        float y = args.D.values.data == nullptr ? sum : fmaf(constant(args.D), x, sum);
        if (args.z.values.data != nullptr)
            y *= scan::silu_fast(load_float(args.z.values, sequence * args.z.sequence + row * args.z.channel));
        store(y);
    }
};

// Fills the outputs of a sequence without a state.
__device__ __forceinline__ void fill_rows(const Mamba2LayerArgs& args, int sequence, int first, int end, float y) {
#pragma unroll 1
    for (int row = first + static_cast<int>(threadIdx.x); row < end; row += static_cast<int>(blockDim.x))
        Mamba2Row(args, sequence, row, true).store(y);
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

    char* const rows_of_group = static_cast<char*>(args.pool) + slot * args.pool_slot * bytes_of(kConfig.state) +
                                group_row * static_cast<i64>(kConfig.row_bytes());
    const int own_row = first_row + thread / kLanes;
    const scan::TiedRows<kConfig> rows(shared.ring, rows_of_group, thread, own_row, end);
    rows.start();
    float* const columns = shared.columns[0];
#pragma unroll 1
    for (int n = thread; n < 2 * kConfig.columns; n += kConfig.threads()) {
        const int which = n / kConfig.columns;
        Mamba2Channel channel(args, sequence, column_channel(args, which, group, n - which * kConfig.columns, kConfig.columns));
        channel.load(slot);
        columns[n] = channel.output();
    }
    __syncthreads();
    cluster.arrive();  // this block has read the convolution's state of B and C
    float B[kRow.elements()], C[kRow.elements()];
    const int lane = thread % kLanes;
#pragma unroll
    for (int i = 0; i < kRow.elements(); ++i) {
        const int column = scan::tied_column<kConfig>(i / kRow.vector, lane) + i % kRow.vector;
        B[i] = shared.columns[0][column], C[i] = shared.columns[1][column];
    }

    char* const to = rows_of_group + rows.offset();
    const int steps = (end - first_row + kRowsPerStep - 1) / kRowsPerStep;  // less than 1 in a block without rows
#pragma unroll 1
    for (int step = 0; step < steps; step += kLanes) {
        const int count = min(kLanes, steps - step), row = own_row + (step + lane) * kRowsPerStep;
        Mamba2Row mine(args, sequence, group_row + row, lane < count && row < end);
        mine.run<kRow>(slot);
        mine.finish(rows.advance(step, count, mine.by.decay, mine.by.gain * mine.x, B, C, to));
    }

    __syncwarp();
    cluster.wait();
    const int slice = (2 * kConfig.columns + cluster.size - 1) / cluster.size;
#pragma unroll 1
    for (int n = cluster.rank * slice + thread; n < min((cluster.rank + 1) * slice, 2 * kConfig.columns);
         n += kConfig.threads()) {
        const int which = n / kConfig.columns;
        Mamba2Channel channel(args, sequence, column_channel(args, which, group, n - which * kConfig.columns, kConfig.columns));
        channel.push(slot, load_float(args.xBC.values, sequence * args.xBC.sequence + channel.channel * args.xBC.channel));
    }
    launch_dependent_grids();
}

}  // namespace gdn_cuda::layers
