// Configuration and arguments of layers/gating, for host and device.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda::layers {

struct GatingConfig {
    DType io;    // a, b and beta
    int vector;  // columns per thread: 8 where rows allow 16-byte accesses, else 1
    int threads;
    bool channels = false;  // columns are the channels of heads, and there is no beta; else they are heads
    bool bounded = false;   // with channels: the gate is lower_bound sigmoid(exp(A_log) (a + dt_bias))

    constexpr bool operator==(const GatingConfig&) const = default;

    GDN_FIELDS(io, vector, threads, channels, bounded)

    // All blocks are resident at once, as many as registers allow: a second, partial wave would leave SMs idle.
    GDN_HOST_DEVICE constexpr int blocks_per_multiprocessor(int capability) const {
        return io == DType::f32 || capability >= 100 ? 3 : 4;
    }
};

struct GatingArgs {
    Tagged A_log, dt_bias;                   // A_log without data: 0; dt_bias: 0
    const void *a, *b;                       // (batch, token, head), heads contiguous; or (batch, token, head, channel)
    i64 a_batch, a_token, b_batch, b_token;  // strides in elements
    void* beta;                              // contiguous
    float* gate;                             // contiguous
    i64 rows;                                // batch * tokens
    int tokens, columns;
    bool one_batch;  // rows are contiguous at the token stride: no division
    int channels;    // of a head
    i64 a_head, bias_head;
    float lower_bound;
};

}  // namespace gdn_cuda::layers
