// scan/s7_product: out_i = sum over j of M_ij v_j (+ bias_i), for every batch and token: B u, C x and their transposes.
//
// A thread has 16 bytes of tokens of four rows, and loads each vector once for all four. The four warps of a block have the
// same tokens; each computes every fourth column. Their fp32 sums go through shared memory and are added in the order of warps.
//
// Bound: memory, the matrix read once; vectors come from L2, once for four rows. docs/benchmarks/scan.md has the measured share
// of s7_scan.
#pragma once

#include <gdn_cuda/kernels/scan/s7/tokens.cuh>

namespace gdn_cuda::scan {

template <S7ProductConfig kConfig>
__global__ void __launch_bounds__(kS7Threads) s7_product(const __grid_constant__ S7ProductArgs args) {
    using Io = Storage<kConfig.io>;
    using In = Storage<kConfig.of_input ? kConfig.io : DType::f32>;
    using Out = Storage<kConfig.of_input ? DType::f32 : kConfig.io>;
    constexpr int kTokens = kConfig.tokens();
    __shared__ float partial[kS7Warps - 1][kS7Rows][kTokens][32];
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const i64 token = static_cast<i64>(blockIdx.x) * kConfig.tile() + lane * kTokens;
    const int left = args.tokens - static_cast<int>(token), first_row = static_cast<int>(blockIdx.y) * kS7Rows;
    const i64 batch = blockIdx.z;

    float sums[kS7Rows][kTokens];
    const Io* row[kS7Rows];
#pragma unroll
    for (int r = 0; r < kS7Rows; ++r) {
        const i64 mine = min(first_row + r, args.rows - 1);  // rows past the end repeat the last one, and are not stored
        row[r] = static_cast<const Io*>(args.matrix.data) + batch * args.matrix.batch + mine * args.matrix.row +
                 warp * args.matrix.column + token;
        Vector<Io, kTokens, true> bias;
        bias.clear();
        if (warp == 0 && args.bias.data != nullptr)
            bias = load_tokens<Io, kTokens>(
                static_cast<const Io*>(args.bias.data) + batch * args.bias.batch + mine * args.bias.row + token, left,
                args.vectors);
#pragma unroll
        for (int i = 0; i < kTokens; ++i) sums[r][i] = bias[i];
    }
    const In* vector = static_cast<const In*>(args.vector.data) + batch * args.vector.batch + warp * args.vector.row + token;
#pragma unroll 2
    for (int column = warp; column < args.columns; column += kS7Warps, vector += kS7Warps * args.vector.row) {
        const auto v = load_tokens<In, kTokens>(vector, left, args.vectors);
#pragma unroll
        for (int r = 0; r < kS7Rows; ++r) {
            const auto m = load_tokens<Io, kTokens>(row[r], left, args.vectors);
            row[r] += kS7Warps * args.matrix.column;
#pragma unroll
            for (int i = 0; i < kTokens; ++i) sums[r][i] = fmaf(m[i], v[i], sums[r][i]);
        }
    }
    if (warp > 0) {
#pragma unroll
        for (int r = 0; r < kS7Rows; ++r)
#pragma unroll
            for (int i = 0; i < kTokens; ++i) partial[warp - 1][r][i][lane] = sums[r][i];
    }
    __syncthreads();
    if (warp > 0) return;
#pragma unroll
    for (int other = 0; other < kS7Warps - 1; ++other)
#pragma unroll
        for (int r = 0; r < kS7Rows; ++r)
#pragma unroll
            for (int i = 0; i < kTokens; ++i) sums[r][i] += partial[other][r][i][lane];
    Out* out = static_cast<Out*>(args.out.data) + batch * args.out.batch + first_row * args.out.row + token;
#pragma unroll
    for (int r = 0; r < kS7Rows; ++r, out += args.out.row)
        if (first_row + r < args.rows) store_tokens<Out, kTokens>(out, sums[r], left, args.vectors);
}

}  // namespace gdn_cuda::scan
