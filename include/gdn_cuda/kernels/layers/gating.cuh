// layers/gating: beta = sigmoid(b), gate = -exp(A_log) softplus(a + dt_bias), elementwise over (tokens, heads).
//
// With channels, gates alone, over (tokens, heads x channels): A_log for heads, dt_bias for channels, and maybe a bound, with
// which the gate is lower_bound sigmoid(exp(A_log) (a + dt_bias)).
//
// A thread keeps its columns' rate and bias in registers and loops over tokens. No shared memory.
//
// Bound: memory, 10 bytes per element for bf16 (a, b and beta 2 each, gate 4), with channels 6; docs/benchmarks/decode.md has
// the measured bandwidth of the former.
#pragma once

#include <gdn_cuda/kernels/common/vector.cuh>
#include <gdn_cuda/kernels/layers/gating_plan.cuh>
#include <gdn_cuda/kernels/recurrence/bounded_rate.cuh>

namespace gdn_cuda::layers {

// Where a thread's first column is in a row of a, in A_log, and in dt_bias.
struct GatingColumn {
    i64 a, bias;
    int head;
};
template <GatingConfig kConfig>
__device__ __forceinline__ GatingColumn gating_column(const GatingArgs& args, int column) {
    if constexpr (!kConfig.channels) return {column, column, column};
    const int head = column / args.channels, channel = column - head * args.channels;
    return {head * args.a_head + channel, head * args.bias_head + channel, head};
}

template <GatingConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads, kConfig.blocks_per_multiprocessor(kCompiledCapability))
    gating(const __grid_constant__ GatingArgs args) {
    using T = Storage<kConfig.io>;
    constexpr int kVector = kConfig.vector;
    constexpr bool kAligned = kVector > 1;

    const int columns = args.columns / kVector;
    const i64 thread = static_cast<i64>(blockIdx.x) * kConfig.threads + threadIdx.x;
    const i64 row_step = static_cast<i64>(gridDim.x) * kConfig.threads / columns;
    if (thread >= row_step * columns) return;
    const int column = static_cast<int>(thread % columns) * kVector;
    const GatingColumn at = gating_column<kConfig>(args, column);

    constexpr int kRates = kConfig.channels ? 1 : kVector;  // a vector is within a head
    float rate[kRates], bias[kVector];
    float lowest = kLowestOfSoftplus;  // smaller `a + dt_bias` need gate_by_logarithm
#pragma unroll
    for (int i = 0; i < kRates; ++i) {
        const float rate_log = kConfig.channels && args.A_log.data == nullptr ? 0.f : load_float(args.A_log, at.head + i);
        rate[i] = kConfig.bounded ? bounded_rate(rate_log) : -expf(rate_log);
        if (rate_log > kLargestRateLog) lowest = __int_as_float(0x7f800000);
    }
#pragma unroll
    for (int i = 0; i < kVector; ++i)
        bias[i] = kConfig.channels && args.dt_bias.data == nullptr ? 0.f : load_float(args.dt_bias, at.bias + i);

    const auto load = [&](i64 row, Vector<T, kVector, kAligned>& a, Vector<T, kVector, kAligned>& b) {
        const i64 batch = args.one_batch ? 0 : row / args.tokens, token = row - batch * args.tokens;
        a.load(static_cast<const T*>(args.a) + batch * args.a_batch + token * args.a_token + at.a);
        if constexpr (!kConfig.channels)
            b.load(static_cast<const T*>(args.b) + batch * args.b_batch + token * args.b_token + column);
    };
    const i64 first_row = thread / columns;
    if (first_row >= args.rows) return;
    i64 row = first_row;
    bool by_logarithm = false;
    Vector<T, kVector, kAligned> a, b;
    load(row, a, b);
    for (; row < args.rows; row += row_step) {
        Vector<T, kVector, kAligned> next_a, next_b, beta;
        if (row + row_step < args.rows) load(row + row_step, next_a, next_b);  // in flight while this row is computed
        Vector<float, kVector, kAligned> gate;
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
            const float x = a[i] + bias[i];
            if constexpr (!kConfig.channels) beta.set(i, sigmoid(b[i]));
            if constexpr (kConfig.bounded) {
                gate.items[i] = args.lower_bound * sigmoid(rate[0] * x);
            } else {
                gate.items[i] = rate[kConfig.channels ? 0 : i] * softplus(x);
                by_logarithm |= x < lowest;
            }
        }
        if constexpr (!kConfig.channels) beta.store(static_cast<T*>(args.beta) + row * args.columns + column);
        gate.store(args.gate + row * args.columns + column);
        a = next_a;
        b = next_b;
    }
    if (!by_logarithm) return;
        // Rare, hence a second pass: inside the loop it would cost registers.
#pragma unroll 1
    for (row = first_row; row < args.rows; row += row_step) {
        const i64 batch = args.one_batch ? 0 : row / args.tokens, token = row - batch * args.tokens;
        const T* a_row = static_cast<const T*>(args.a) + batch * args.a_batch + token * args.a_token + at.a;
#pragma unroll 1
        for (int i = 0; i < kVector; ++i) {
            const float x = to_float(a_row[i]) + (args.dt_bias.data == nullptr ? 0.f : load_float(args.dt_bias, at.bias + i));
            args.gate[row * args.columns + column + i] =
                log_decay(load_float(args.A_log, at.head + (kConfig.channels ? 0 : i)), x);
        }
    }
}

}  // namespace gdn_cuda::layers
