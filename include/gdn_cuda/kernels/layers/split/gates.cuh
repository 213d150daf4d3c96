// A layer's gates, computed in the kernel of its convolution: beta = sigmoid(b), gate = -exp(A_log) softplus(a + dt_bias).
//
// The gates have less than 1 % of the bytes of q, k and v, and read other tensors. Separate blocks compute them; these come
// after the convolution's blocks in the grid and fill SMs that those leave idle. A thread has several gates, whose loads are in
// flight together.
#pragma once

#include <gdn_cuda/kernels/common/numeric.cuh>
#include <gdn_cuda/kernels/layers/split/plan.cuh>

namespace gdn_cuda::layers {

__device__ __forceinline__ i64 offset_of(const Scalars& scalars, i64 batch, i64 token, i64 head) {
    return batch * scalars.batch + token * scalars.token + head * scalars.head;
}

// If this is a block for gates, writes its gates. Returns whether it is.
template <int kThreads>
__device__ __forceinline__ bool wrote_gates(const SplitArgs& args) {
    constexpr int kGates = SplitGates::per_thread;
    const SplitGates& gates = args.gates;
    if (blockIdx.x < gates.first_block) return false;
    const unsigned heads = args.heads.value_heads, tokens = args.conv.tokens;
    const i64 first = i64{blockIdx.x - gates.first_block} * (kThreads * kGates), row = first / heads, batch = row / tokens;
    // 32 bits suffice for rows relative to the block's first.
    const unsigned first_head = static_cast<unsigned>(first - row * heads),
                   first_token = static_cast<unsigned>(row - batch * tokens),
                   count = static_cast<unsigned>(min(args.gate_count() - first, i64{kThreads * kGates}));
    unsigned a[kGates], b[kGates], A_log[kGates], dt_bias[kGates];
#pragma unroll
    for (int i = 0; i < kGates; ++i) {
        const unsigned place = first_head + min(threadIdx.x + i * kThreads, count - 1), head = place % heads;
        const unsigned token = first_token + place / heads;
        a[i] = load_raw(gates.a.values, offset_of(gates.a, batch + token / tokens, token % tokens, head));
        b[i] = load_raw(gates.b.values, offset_of(gates.b, batch + token / tokens, token % tokens, head));
        A_log[i] = load_raw(gates.A_log, head);
        dt_bias[i] = load_raw(gates.dt_bias, head);
    }
#pragma unroll
    for (int i = 0; i < kGates; ++i) {
        if (threadIdx.x + i * kThreads >= count) break;
        const i64 at = first + threadIdx.x + i * kThreads;
        const float x = to_float(a[i], gates.a.values.type) + to_float(dt_bias[i], gates.dt_bias.type);
        gates.gate[at] = log_decay(to_float(A_log[i], gates.A_log.type), x);
        store_float(gates.beta, gates.b.values.type, at, sigmoid(to_float(b[i], gates.b.values.type)));
    }
    return true;
}

}  // namespace gdn_cuda::layers
