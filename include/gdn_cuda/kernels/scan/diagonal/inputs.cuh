// The inputs of the diagonal scan kernels, for host and device: x_t = Ā_t x_{t-1} + f_t Bu_t, with a row for each state of each
// sequence.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>
#include <gdn_cuda/kernels/scan/discretization_plan.cuh>

namespace gdn_cuda::scan {

inline constexpr int kDiagonalTokens = 4;  // tokens per thread: an fp64 complex number takes four registers

// (batch, P, L) if it varies, else (P), contiguous.
struct StepSizes {
    const float* data = nullptr;
    bool varies = false;
};

// Complex numbers are complex64. Everything is contiguous.
struct DiagonalInputs {
    const void* input = nullptr;  // Bu: (batch, P, L)
    const void* A = nullptr;      // (P)
    StepSizes delta, delta_a;     // delta_a.data is null if δ_A is δ
    int states = 0, rows = 0;     // P, and batch times P
    int length = 0;               // L
    int parts = 1;                // blocks that share a row, each with part_tokens tokens, a multiple of the tile
    int part_tokens = 0;
    bool aligned = false;  // every row is 16-byte aligned
    Discretization discretization = Discretization::bilinear;
};

}  // namespace gdn_cuda::scan
