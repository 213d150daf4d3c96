// scan/diagonal_scan: x_t = Ā_t x_{t-1} + f_t Bu_t, the states of a diagonal system (S5, LRU), and the last of them.
//
// A block has one row (one state of one sequence), or a part of it; its threads are along time, with four tokens each
// (row_scan.cuh). Ā and f are computed in registers. They and the scan are fp64, so that phases and decays near one do not
// drift. If several blocks share a row, scan/diagonal_scan_parts runs first and writes the map of each part, from which each
// block computes the state before its part.
//
// Shared memory: the warps' maps, in two buffers. Bound: memory, 16 bytes a token, 20 with a varying step size, where fp64 is
// fast: a token takes 40 or 75 fp64 operations, and an SM of Hopper does 64 a clock, of Ampere's A100 32. Other GPUs are bound
// by fp64. docs/benchmarks/scan.md has the measured share.
#pragma once

#include <gdn_cuda/kernels/scan/diagonal/row.cuh>
#include <gdn_cuda/kernels/scan/diagonal/scan_plan.cuh>

namespace gdn_cuda::scan {

template <DiagonalScanConfig kConfig>
struct DiagonalScan {
    using Row = DiagonalRow<kConfig.varying>;
    using Scan = RowScan<Wide, kConfig.threads, kDiagonalTokens>;
    using Map = typename Scan::Map;
    struct Loaded {
        Tokens<Stored> input;
        typename Row::Sizes sizes;
    };

    const DiagonalScanArgs& args;
    const Row row;
    Scan scan;

    __device__ __forceinline__ DiagonalScan(const DiagonalScanArgs& args, typename Scan::Plan& shared)
        : args(args), row(args.inputs), scan{shared, state_before()} {}

    __device__ __forceinline__ Wide state_before() const {
        Wide x{0, 0};
        if (args.initial_state != nullptr) x = wide(static_cast<const Stored*>(args.initial_state)[row.row]);
        const auto* maps = reinterpret_cast<const Map*>(args.maps) + static_cast<i64>(row.row) * args.inputs.parts;
        for (int part = 0; part < row.part; ++part) x = maps[part](x);
        return x;
    }
    __device__ __forceinline__ void load(Loaded& loaded, int token) const {
        row.load(loaded.input, args.inputs.input, token);
        row.load_sizes(loaded.sizes, token);
    }
    template <Discretization kKind>
    __device__ __forceinline__ void run() {
        const DiagonalStep<kKind> fixed = row.template fixed_step<kKind>();
        Loaded next;
        load(next, row.first + Scan::first_token());
        for (int tile = row.first; tile < row.end; tile += kConfig.tile()) {
            const int token = tile + Scan::first_token();
            const Loaded loaded = next;
            if (tile + kConfig.tile() < row.end) load(next, token + kConfig.tile());
            Wide a[kDiagonalTokens], x[kDiagonalTokens];
#pragma unroll
            for (int i = 0; i < kDiagonalTokens; ++i) {
                const DiagonalStep<kKind> step =
                    kConfig.varying ? row.template step<kKind>(row.template decay<kKind>(loaded.sizes, i), loaded.sizes, i)
                                    : fixed;
                a[i] = step.a;
                x[i] = step.factor * wide(loaded.input.items[i]);
            }
            row.mask(a, x, token);
            scan.advance(a, x);
            Tokens<Stored> out;
#pragma unroll
            for (int i = 0; i < kDiagonalTokens; ++i) out.items[i] = narrow(x[i]);
            store_tokens(out, static_cast<Stored*>(args.x) + row.start, token, row.end, args.inputs.aligned);
        }
        if (threadIdx.x == 0 && row.part == args.inputs.parts - 1)
            static_cast<Stored*>(args.last_state)[row.row] = narrow(scan.state);
    }
};

template <DiagonalScanConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads) diagonal_scan(const __grid_constant__ DiagonalScanArgs args) {
    using Block = DiagonalScan<kConfig>;
    __shared__ typename Block::Scan::Plan shared;
    Block block(args, shared);
    with_kind(args.inputs.discretization, [&](auto kind) { block.template run<decltype(kind)::kValue>(); });
}

}  // namespace gdn_cuda::scan
