// scan/diagonal_scan_backward: gradients of scan/diagonal_scan by Bu, the step sizes, A and the initial state.
//
// With g the gradient of x, dx_t = g_t + e_{t+1} and e_t = conj(Ā_t) dx_t, from the last token to the first: the scan of the
// maps e -> conj(Ā) e + conj(Ā) g, whose last state is the gradient of the initial one. Then Ā_t has the gradient
// dx_t conj(x_{t-1}), f_t has dx_t conj(Bu_t), and Bu_t has dx_t conj(f_t).
//
// A block has one row or a part of it; its threads are along time in reverse, with four tokens each, and recompute Ā and f.
// Gradients that are sums over time are summed over a thread's tokens, then the warp, then the block, in a fixed order; the
// host adds up parts and batch.
//
// Shared memory: the warps' maps, in two buffers, and sums. Bound: memory, 32 bytes a token, 40 with a varying step size.
#pragma once

#include <gdn_cuda/kernels/scan/diagonal/row.cuh>
#include <gdn_cuda/kernels/scan/diagonal/scan_backward_plan.cuh>

namespace gdn_cuda::scan {

template <DiagonalScanBackwardConfig kConfig>
struct DiagonalScanBackward {
    using Row = DiagonalRow<kConfig.varying>;
    using Scan = RowScan<Wide, kConfig.threads, kDiagonalTokens>;
    using Map = typename Scan::Map;
    static constexpr int kSums = DiagonalScanBackwardConfig::kSums;
    struct Shared {
        typename Scan::Plan scan;
        double sums[Scan::kWarps][kSums];
    };

    const DiagonalScanBackwardArgs& args;
    const Row row;
    Scan scan;
    Shared& shared;
    Wide dA_sum = {0, 0};
    double ddelta_sum = 0, ddelta_a_sum = 0;

    __device__ __forceinline__ DiagonalScanBackward(const DiagonalScanBackwardArgs& args, Shared& shared)
        : args(args), row(args.inputs), scan{shared.scan, after_last()}, shared(shared) {}

    // The gradient that flows in from the tokens after this block's part.
    __device__ __forceinline__ Wide after_last() const {
        Wide e = wide(static_cast<const Stored*>(args.grad_of_last)[row.row]);
        const auto* maps = reinterpret_cast<const Map*>(args.maps) + static_cast<i64>(row.row) * args.inputs.parts;
        for (int part = args.inputs.parts - 1; part > row.part; --part) e = maps[part](e);
        return e;
    }
    // x before the first of this thread's tokens.
    __device__ __forceinline__ Stored state_before(int token) const {
        if (token > 0) return token <= row.end ? (static_cast<const Stored*>(args.x) + row.start)[token - 1] : Stored{0, 0};
        return args.initial_state == nullptr ? Stored{0, 0} : static_cast<const Stored*>(args.initial_state)[row.row];
    }

    // `fixed`: the step of every token, where step sizes do not vary.
    template <Discretization kKind>
    __device__ __forceinline__ void tile(const DiagonalStep<kKind>& fixed, int token) {
        Tokens<Stored> input, grad, x, out;
        typename Row::Sizes sizes;
        row.load(grad, args.grad, token);
        row.load_sizes(sizes, token);
        row.load(input, args.inputs.input, token);
        row.load(x, args.x, token);
        const Stored before = state_before(token);
        Wide a[kDiagonalTokens], e[kDiagonalTokens];
#pragma unroll
        for (int at = 0; at < kDiagonalTokens; ++at) {
            const int j = kDiagonalTokens - 1 - at;
            a[at] = (kConfig.varying ? row.template decay<kKind>(sizes, j) : fixed.a).conjugate();
            e[at] = a[at] * wide(grad.items[j]);
        }
        row.template mask<true>(a, e, token);
        Wide after = scan.advance(a, e);
        Tokens<float> ddelta, ddelta_a;
#pragma unroll
        for (int at = 0; at < kDiagonalTokens; ++at) {
            const int j = kDiagonalTokens - 1 - at;
            const DiagonalStep<kKind> step = kConfig.varying ? row.template step<kKind>(a[at].conjugate(), sizes, j) : fixed;
            const double delta = row.delta_of(sizes, j), delta_a = row.delta_a_of(sizes, j);
            const Wide dx = wide(grad.items[j]) + after;
            after = e[at];
            const Wide da = dx * wide(j == 0 ? before : x.items[j - 1]).conjugate(),
                       dfactor = dx * wide(input.items[j]).conjugate();
            out.items[j] = narrow(dx * step.factor.conjugate());
            double by_delta, by_delta_a;
            Wide by_A{0, 0};
            step.gradients(da, dfactor, delta, delta_a, row.A, row.inverse_A, by_delta, by_delta_a, by_A);
            if (!row.separate) by_delta += by_delta_a, by_delta_a = 0;
            ddelta.items[j] = static_cast<float>(by_delta);
            ddelta_a.items[j] = static_cast<float>(by_delta_a);
            if (token + j < row.end) {
                dA_sum = dA_sum + by_A;
                ddelta_sum += by_delta;
                ddelta_a_sum += by_delta_a;
            }
        }
        store_tokens(out, static_cast<Stored*>(args.dinput) + row.start, token, row.end, args.inputs.aligned);
        if constexpr (kConfig.varying) {
            if (args.ddelta != nullptr) store_tokens(ddelta, args.ddelta + row.start, token, row.end, args.inputs.aligned);
            if (args.ddelta_a != nullptr)
                store_tokens(ddelta_a, args.ddelta_a + row.start, token, row.end, args.inputs.aligned);
        }
    }

    template <Discretization kKind>
    __device__ __forceinline__ void run() {
        const int tiles = (row.end - row.first + kConfig.tile() - 1) / kConfig.tile();
        const int thread_offset = kConfig.tile() - kDiagonalTokens - Scan::first_token();
        const DiagonalStep<kKind> fixed = row.template fixed_step<kKind>();
#pragma unroll 1
        for (int i = tiles - 1; i >= 0; --i) tile<kKind>(fixed, row.first + i * kConfig.tile() + thread_offset);
        if (threadIdx.x == 0 && row.part == 0) static_cast<Stored*>(args.dinitial_state)[row.row] = narrow(scan.state);
    }

    __device__ __forceinline__ void write_sums() {
        double sums[kSums] = {dA_sum.re, dA_sum.im, ddelta_sum, ddelta_a_sum};
#pragma unroll
        for (int i = 0; i < kSums; ++i) {
#pragma unroll
            for (int lanes = 16; lanes > 0; lanes /= 2) sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], lanes);
            if (threadIdx.x % 32 == 0) shared.sums[threadIdx.x / 32][i] = sums[i];
        }
        __syncthreads();
        if (threadIdx.x >= kSums) return;
        double sum = 0;
#pragma unroll
        for (int warp = 0; warp < Scan::kWarps; ++warp) sum += shared.sums[warp][threadIdx.x];
        const int states = args.inputs.states, batch = row.row / states;
        const i64 at = (static_cast<i64>(batch) * args.inputs.parts + row.part) * states + row.state;
        args.sums[at * kSums + threadIdx.x] = sum;
    }
};

template <DiagonalScanBackwardConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads)
    diagonal_scan_backward(const __grid_constant__ DiagonalScanBackwardArgs args) {
    using Block = DiagonalScanBackward<kConfig>;
    __shared__ typename Block::Shared shared;
    Block block(args, shared);
    with_kind(args.inputs.discretization, [&](auto kind) { block.template run<decltype(kind)::kValue>(); });
    block.write_sums();
}

}  // namespace gdn_cuda::scan
