// scan/s7_outer: out_ij = p_i q_j for every batch and token, with p over states and q over inputs: the gradients of B and C.
//
// A thread has 16 bytes of tokens of four states. The four warps of a block have the same tokens; each computes every fourth
// input. No shared memory.
//
// Bound: memory, the matrix written once. docs/benchmarks/scan.md has the measured share of s7_scan.
#pragma once

#include <gdn_cuda/kernels/scan/s7/tokens.cuh>

namespace gdn_cuda::scan {

template <S7OuterConfig kConfig>
__global__ void __launch_bounds__(kS7Threads) s7_outer(const __grid_constant__ S7OuterArgs args) {
    using Io = Storage<kConfig.io>;
    constexpr int kTokens = kConfig.tokens();
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const i64 token = static_cast<i64>(blockIdx.x) * kConfig.tile() + lane * kTokens;
    if (token >= args.tokens) return;
    const int left = args.tokens - static_cast<int>(token), first = static_cast<int>(blockIdx.y) * kS7Rows;
    const i64 batch = blockIdx.z;

    Vector<float, kTokens, true> states[kS7Rows];
#pragma unroll
    for (int r = 0; r < kS7Rows; ++r) {
        const i64 mine = min(first + r, args.states_count - 1);
        states[r] = load_tokens<float, kTokens>(
            static_cast<const float*>(args.states.data) + batch * args.states.batch + mine * args.states.row + token, left,
            args.vectors);
    }
    const Io* input = static_cast<const Io*>(args.inputs.data) + batch * args.inputs.batch + warp * args.inputs.row + token;
    Io* out = static_cast<Io*>(args.out.data) + batch * args.out.batch + first * args.out.row + warp * args.out.column + token;
#pragma unroll 2
    for (int i = warp; i < args.inputs_count;
         i += kS7Warps, input += kS7Warps * args.inputs.row, out += kS7Warps * args.out.column) {
        const auto q = load_tokens<Io, kTokens>(input, left, args.vectors);
#pragma unroll
        for (int r = 0; r < kS7Rows; ++r) {
            float product[kTokens];
#pragma unroll
            for (int k = 0; k < kTokens; ++k) product[k] = states[r][k] * q[k];
            if (first + r < args.states_count) store_tokens<Io, kTokens>(out + r * args.out.row, product, left, args.vectors);
        }
    }
}

}  // namespace gdn_cuda::scan
