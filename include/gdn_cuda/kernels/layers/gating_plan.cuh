// Configuration and arguments of layers/gating, for host and device.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda::layers {

struct GatingConfig {
    DType io;    // a, b and beta
    int vector;  // heads per thread: 8 where rows allow 16-byte accesses, else 1
    int threads;

    constexpr bool operator==(const GatingConfig&) const = default;

    GDN_FIELDS(io, vector, threads)

    // All blocks are resident at once, as many as registers allow: a second, partial wave would leave SMs idle.
    GDN_HOST_DEVICE constexpr int blocks_per_multiprocessor(int capability) const {
        return io == DType::f32 || capability >= 100 ? 3 : 4;
    }
};

struct GatingArgs {
    Tagged A_log, dt_bias;
    const void *a, *b;                       // (batch, token, head), heads contiguous
    i64 a_batch, a_token, b_batch, b_token;  // strides in elements
    void* beta;                              // contiguous
    float* gate;                             // contiguous
    i64 rows;                                // batch * tokens
    int tokens, heads;
    bool one_batch;  // rows are contiguous at the token stride: no division
};

}  // namespace gdn_cuda::layers
