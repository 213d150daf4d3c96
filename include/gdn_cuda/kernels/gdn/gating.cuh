// gdn/gating: beta = sigmoid(b), gate = -exp(A_log) softplus(a + dt_bias), elementwise over (tokens, heads).
//
// A thread keeps its heads' rate and bias in registers and walks over tokens. Nothing is in shared memory.
//
// Bound: memory, 10 bytes an element in bf16 (a, b and beta 2 each, gate 4); docs/benchmarks/decode.md has the share reached.
#pragma once

#include <gdn_cuda/kernels/common/vector.cuh>
#include <gdn_cuda/kernels/gdn/gating_plan.cuh>

namespace gdn_cuda::gdn {

template <GatingConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads) gating(const __grid_constant__ GatingArgs args) {
    using T = Storage<kConfig.io>;
    constexpr int kVector = kConfig.vector;
    constexpr bool kAligned = kVector > 1;

    const int columns = args.heads / kVector;
    const i64 thread = static_cast<i64>(blockIdx.x) * kConfig.threads + threadIdx.x;
    const i64 row_step = static_cast<i64>(gridDim.x) * kConfig.threads / columns;
    if (thread >= row_step * columns) return;
    const int head = static_cast<int>(thread % columns) * kVector;

    float rate[kVector], bias[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
        rate[i] = -expf(load_number(args.A_log, head + i));
        bias[i] = load_number(args.dt_bias, head + i);
    }

    for (i64 row = thread / columns; row < args.rows; row += row_step) {
        const i64 batch = args.one_batch ? 0 : row / args.tokens, token = row - batch * args.tokens;
        Vector<T, kVector, kAligned> a, b, beta;
        a.load(static_cast<const T*>(args.a) + batch * args.a_batch + token * args.a_token + head);
        b.load(static_cast<const T*>(args.b) + batch * args.b_batch + token * args.b_token + head);
        Vector<float, kVector, kAligned> gate;
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
            beta.set(i, sigmoid(b[i]));
            gate.items[i] = rate[i] * softplus(a[i] + bias[i]);
        }
        beta.store(static_cast<T*>(args.beta) + row * args.heads + head);
        gate.store(args.gate + row * args.heads + head);
    }
}

}  // namespace gdn_cuda::gdn
