// Configurations and arguments of scan/s7_product, scan/s7_states and scan/s7_outer, for host and device.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda::scan {

// (batch, row, token), tokens contiguous; strides in elements.
struct S7Rows {
    void* data = nullptr;
    i64 batch = 0, row = 0;
};
// (batch, row, column, token), tokens contiguous.
struct S7Matrix {
    void* data = nullptr;
    i64 batch = 0, row = 0, column = 0;
};

inline constexpr int kS7Threads = 128;
inline constexpr int kS7Rows = 4;                 // rows per thread, which share the loads of columns
inline constexpr int kS7Warps = kS7Threads / 32;  // warps per block: each computes every fourth column

// ---- Products and outer products

struct S7ProductConfig {
    DType io;       // dtype of the matrix, and of the vector if that is over inputs, otherwise of the result
    bool of_input;  // the vector is over inputs and the result over states, in fp32; otherwise the reverse

    constexpr bool operator==(const S7ProductConfig&) const = default;

    GDN_FIELDS(io, of_input)

    GDN_HOST_DEVICE constexpr int tokens() const { return 16 / bytes_of(io); }  // per thread
    GDN_HOST_DEVICE constexpr int tile() const { return tokens() * 32; }
};
struct S7ProductArgs {
    S7Matrix matrix;
    S7Rows vector, bias, out;  // bias, if there is one, has io's dtype
    int rows, columns, tokens;
    bool vectors;  // every row is 16-byte aligned
};

struct S7OuterConfig {
    DType io;  // dtype of the matrix and of the inputs; states are fp32

    constexpr bool operator==(const S7OuterConfig&) const = default;

    GDN_FIELDS(io)

    GDN_HOST_DEVICE constexpr int tokens() const { return 16 / bytes_of(io); }
    GDN_HOST_DEVICE constexpr int tile() const { return tokens() * 32; }
};
struct S7OuterArgs {
    S7Rows states, inputs;
    S7Matrix out;  // row: the state; column: the input
    int states_count, inputs_count, tokens;
    bool vectors;
};

// ---- The recurrence

struct S7StatesConfig {
    DType io;  // dtype of A and its gradient
    bool reverse;

    constexpr bool operator==(const S7StatesConfig&) const = default;

    GDN_FIELDS(io, reverse)

    GDN_HOST_DEVICE static constexpr int tokens() { return 8; }  // per thread
    GDN_HOST_DEVICE static constexpr int tile() { return tokens() * kS7Threads; }
};
struct S7StatesArgs {
    S7Rows A;
    float* states;  // (batch, row, token): forward, in: what is added to the states, out: the states; reverse, in: the states
    float* grads;   // reverse, in: gradients of the states as outputs, out: gradients of what is added to the states
    const float* grad_last;  // reverse: (batch, row), or null
    float* last;             // forward: (batch, row)
    void* dA;                // reverse: (batch, row, token), contiguous
    int rows, tokens;
};

}  // namespace gdn_cuda::scan
