// scan/s7_states: x_t = a_t x_{t-1} + b_t with a = 1 - 1/(A^2 + 1/2), in place of b; or in reverse, the gradients of b and A.
//
// A block has one row, each thread 8 consecutive tokens of a tile, and the block carries the state over tiles (row_scan.cuh).
// In fp64, since a is near one for slow decays. In reverse, tokens are counted from the end:
//     lambda_t = grad_t + a_{t+1} lambda_{t+1},   grad A_t = lambda_t x_{t-1} 2A / (A^2 + 1/2)^2.
//
// Bound: memory, 10 bytes per element forward and 16 in reverse for bf16; the products around it move B and C, H times as much.
#pragma once

#include <gdn_cuda/kernels/common/numeric.cuh>
#include <gdn_cuda/kernels/scan/row_scan.cuh>
#include <gdn_cuda/kernels/scan/s7/plan.cuh>

namespace gdn_cuda::scan {

template <S7StatesConfig kConfig>
__global__ void __launch_bounds__(kS7Threads) s7_states(const __grid_constant__ S7StatesArgs args) {
    using Io = Storage<kConfig.io>;
    constexpr int kTokens = kConfig.tokens();
    using Scan = RowScan<double, kS7Threads, kTokens>;
    __shared__ typename Scan::Plan shared;

    const i64 row = blockIdx.x, batch = row / args.rows;
    const Io* A = static_cast<const Io*>(args.A.data) + batch * args.A.batch + (row - batch * args.rows) * args.A.row;
    float* states = args.states + row * args.tokens;
    const auto denominator = [&](i64 token) {
        const double value = to_float(A[token]);
        return fma(value, value, 0.5);
    };

    double begin = 0;
    if (kConfig.reverse && args.grad_last != nullptr) begin = args.grad_last[row];
    Scan scan{shared, begin};
#pragma unroll 1
    for (i64 tile = 0; tile < args.tokens; tile += kConfig.tile()) {
        const i64 first = tile + Scan::first_token();
        double a[kTokens], b[kTokens];
        if constexpr (!kConfig.reverse) {
#pragma unroll
            for (int i = 0; i < kTokens; ++i) {
                const bool exists = first + i < args.tokens;
                a[i] = exists ? 1 - 1 / denominator(first + i) : 1;
                b[i] = exists ? states[first + i] : 0;
            }
            scan.advance(a, b);
#pragma unroll
            for (int i = 0; i < kTokens; ++i)
                if (first + i < args.tokens) states[first + i] = static_cast<float>(b[i]);
        } else {
            float* grads = args.grads + row * args.tokens;
            Io* dA = static_cast<Io*>(args.dA) + row * args.tokens;
            const i64 last = args.tokens - 1 - first;  // the token of i = 0; i goes back from it
#pragma unroll
            for (int i = 0; i < kTokens; ++i) {
                const i64 token = last - i;
                a[i] = token >= 0 && token + 1 < args.tokens ? 1 - 1 / denominator(token + 1) : 1;
                b[i] = token >= 0 ? grads[token] : 0;
            }
            scan.advance(a, b);
#pragma unroll
            for (int i = 0; i < kTokens; ++i) {
                const i64 token = last - i;
                if (token < 0) continue;
                grads[token] = static_cast<float>(b[i]);
                const double before = token > 0 ? states[token - 1] : 0, divisor = denominator(token),
                             by_A = 2 * static_cast<double>(to_float(A[token])) / (divisor * divisor);
                dA[token] = from_float<Io>(static_cast<float>(b[i] * before * by_A));
            }
        }
    }
    if (!kConfig.reverse && threadIdx.x == 0) args.last[row] = static_cast<float>(scan.state);
}

}  // namespace gdn_cuda::scan
