// scan/diagonal_scan_parts: the map of each part of a row that several blocks share, from the state before the part to that
// after it; forward for scan/diagonal_scan, in reverse for scan/diagonal_scan_backward.
//
// A block has a part of a row, its threads along time with four tokens each, as in diagonal_scan.cuh. It composes the maps of
// its tokens, x -> Ā x + f Bu or e -> conj(Ā) e + conj(Ā) g, and writes the result. The part that is scanned last needs no map.
//
// Shared memory: the warps' maps, in two buffers. Bound: memory, 8 bytes a token, 12 with a varying step size.
#pragma once

#include <gdn_cuda/kernels/scan/diagonal/row.cuh>
#include <gdn_cuda/kernels/scan/diagonal/scan_parts_plan.cuh>

namespace gdn_cuda::scan {

template <DiagonalScanPartsConfig kConfig>
struct DiagonalScanParts {
    using Row = DiagonalRow<kConfig.varying>;
    using Scan = RowScan<Wide, kConfig.threads, kDiagonalTokens>;
    using Map = typename Scan::Map;

    const DiagonalScanPartsArgs& args;
    const Row row;
    Scan scan;

    __device__ __forceinline__ DiagonalScanParts(const DiagonalScanPartsArgs& args, typename Scan::Plan& shared)
        : args(args), row(args.inputs), scan{shared, {0, 0}} {}

    template <Discretization kKind>
    __device__ __forceinline__ void run() {
        constexpr bool kReverse = kConfig.reverse;
        if (row.part == (kReverse ? 0 : args.inputs.parts - 1)) return;
        const int tiles = (row.end - row.first + kConfig.tile() - 1) / kConfig.tile();
        const int thread_offset = kReverse ? kConfig.tile() - kDiagonalTokens - Scan::first_token() : Scan::first_token();
        const DiagonalStep<kKind> fixed = row.template fixed_step<kKind>();
        Map whole = Map::identity();
#pragma unroll 1
        for (int i = 0; i < tiles; ++i) {
            const int token = row.first + (kReverse ? tiles - 1 - i : i) * kConfig.tile() + thread_offset;
            Tokens<Stored> input;
            typename Row::Sizes sizes;
            row.load(input, args.inputs.input, token);
            row.load_sizes(sizes, token);
            Wide a[kDiagonalTokens], b[kDiagonalTokens];
#pragma unroll
            for (int at = 0; at < kDiagonalTokens; ++at) {
                const int j = kReverse ? kDiagonalTokens - 1 - at : at;
                const DiagonalStep<kKind> step =
                    kConfig.varying ? row.template step<kKind>(row.template decay<kKind>(sizes, j), sizes, j) : fixed;
                a[at] = kReverse ? step.a.conjugate() : step.a;
                b[at] = (kReverse ? a[at] : step.factor) * wide(input.items[j]);
            }
            row.template mask<kReverse>(a, b, token);
            scan.compose(a, b, whole);
        }
        if (threadIdx.x == 0)
            reinterpret_cast<Map*>(args.maps)[static_cast<i64>(row.row) * args.inputs.parts + row.part] = whole;
    }
};

template <DiagonalScanPartsConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads) diagonal_scan_parts(const __grid_constant__ DiagonalScanPartsArgs args) {
    using Block = DiagonalScanParts<kConfig>;
    __shared__ typename Block::Scan::Plan shared;
    Block block(args, shared);
    with_kind(args.inputs.discretization, [&](auto kind) { block.template run<decltype(kind)::kValue>(); });
}

}  // namespace gdn_cuda::scan
