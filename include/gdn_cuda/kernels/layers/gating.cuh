// layers/gating: beta = sigmoid(b), gate = -exp(A_log) softplus(a + dt_bias), elementwise over (tokens, heads).
//
// A thread keeps its heads' rate and bias in registers and loops over tokens. No shared memory.
//
// Bound: memory, 10 bytes per element for bf16 (a, b and beta 2 each, gate 4); docs/benchmarks/decode.md has the measured
// bandwidth.
#pragma once

#include <gdn_cuda/kernels/common/vector.cuh>
#include <gdn_cuda/kernels/layers/gating_plan.cuh>

namespace gdn_cuda::layers {

template <GatingConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads, kConfig.blocks_per_multiprocessor(kCompiledCapability))
    gating(const __grid_constant__ GatingArgs args) {
    using T = Storage<kConfig.io>;
    constexpr int kVector = kConfig.vector;
    constexpr bool kAligned = kVector > 1;

    const int columns = args.heads / kVector;
    const i64 thread = static_cast<i64>(blockIdx.x) * kConfig.threads + threadIdx.x;
    const i64 row_step = static_cast<i64>(gridDim.x) * kConfig.threads / columns;
    if (thread >= row_step * columns) return;
    const int head = static_cast<int>(thread % columns) * kVector;

    float rate[kVector], bias[kVector];
    float lowest = kLowestOfSoftplus;  // smaller `a + dt_bias` need gate_by_logarithm
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
        const float rate_log = load_float(args.A_log, head + i);
        rate[i] = -expf(rate_log);
        bias[i] = load_float(args.dt_bias, head + i);
        if (rate_log > kLargestRateLog) lowest = __int_as_float(0x7f800000);
    }

    const auto load = [&](i64 row, Vector<T, kVector, kAligned>& a, Vector<T, kVector, kAligned>& b) {
        const i64 batch = args.one_batch ? 0 : row / args.tokens, token = row - batch * args.tokens;
        a.load(static_cast<const T*>(args.a) + batch * args.a_batch + token * args.a_token + head);
        b.load(static_cast<const T*>(args.b) + batch * args.b_batch + token * args.b_token + head);
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
            beta.set(i, sigmoid(b[i]));
            gate.items[i] = rate[i] * softplus(x);
            by_logarithm |= x < lowest;
        }
        beta.store(static_cast<T*>(args.beta) + row * args.heads + head);
        gate.store(args.gate + row * args.heads + head);
        a = next_a;
        b = next_b;
    }
    if (!by_logarithm) return;
        // Rare, hence a second pass: inside the loop it would cost registers.
#pragma unroll 1
    for (row = first_row; row < args.rows; row += row_step) {
        const i64 batch = args.one_batch ? 0 : row / args.tokens, token = row - batch * args.tokens;
        const T* a_row = static_cast<const T*>(args.a) + batch * args.a_batch + token * args.a_token;
#pragma unroll 1
        for (int h = head; h < head + kVector; ++h) {
            const float x = to_float(a_row[h]) + load_float(args.dt_bias, h);
            args.gate[row * args.heads + h] = log_decay(load_float(args.A_log, h), x);
        }
    }
}

}  // namespace gdn_cuda::layers
