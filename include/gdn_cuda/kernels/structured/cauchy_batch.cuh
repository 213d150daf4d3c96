// structured/cauchy_batch: real sums of residues over distances to poles, for sixteen rows of residues at a time over the same
// poles and points: the product of the residues with a matrix that is made as it is needed, 1 / (point - pole).
//
// A lane has a point and its sums for all sixteen rows, a warp every sixteenth pole; a reciprocal serves sixteen products. The
// next tile of poles and residues is on its way in registers while this one is used. Warps' sums meet in shared memory, in a
// fixed order.
//
// Distances are exact where poles are close, sums of a tile are added up with what rounding leaves, and points on poles (or
// next to nothing away) are summed once more in double precision, as in structured/cauchy.
//
// Bound: arithmetic, sixteen products and sums a pole and a point, and a dozen instructions besides. On an H200, 16 rows over
// 4096 poles at 4096 points, 18 % of the products' rate (docs/benchmarks/structured.md): one block a multiprocessor.
#pragma once

#include <gdn_cuda/kernels/structured/cauchy.cuh>
#include <gdn_cuda/kernels/structured/cauchy_batch_plan.cuh>

namespace gdn_cuda::structured {

template <CauchyBatchConfig kConfig>
struct CauchyBatch {
    using Shared = CauchyBatchSharedPlan;
    using Io = Numbers<kConfig.io>;
    using One = Cauchy<CauchyConfig{.io = kConfig.io, .conj = false, .rows = 1, .points = 1, .threads = 1, .tile = 1}>;
    static constexpr int kRows = kConfig.kRows, kSlices = kConfig.kSlices, kPoints = kConfig.kPoints, kTile = kConfig.kTile;
    static constexpr int kQuads = kRows / 4;
    static_assert(kTile * kQuads == kConfig.threads());

    const CauchyArgs& args;
    Shared& shared;

    struct Mine {
        float residues[4], pole;
    };
    // Of a tile, one pole's residues of four rows; the first threads have the pole too. Residues past the last are 0.
    __device__ __forceinline__ Mine ask(i64 residues, i64 poles, int first) const {
        Mine mine{};
        const int n = first + static_cast<int>(threadIdx.x) % kTile, quad = static_cast<int>(threadIdx.x) / kTile;
        if (n >= args.pole_count) return mine;
        const i64 row_stride = args.residues.stride[args.leading - 1], at = residues + n * args.residues.step;
#pragma unroll
        for (int i = 0; i < 4; ++i) mine.residues[i] = Io::load(args.residues.data, at + (4 * quad + i) * row_stride).re;
        if (quad == 0) mine.pole = Io::load(args.poles.data, poles + n * args.poles.step).re;
        return mine;
    }
    __device__ __forceinline__ void put(const Mine& mine) {
        const int n = static_cast<int>(threadIdx.x) % kTile, quad = static_cast<int>(threadIdx.x) / kTile;
        *reinterpret_cast<float4*>(&shared.tile.residues[n].of_row[4 * quad]) = {mine.residues[0], mine.residues[1],
                                                                                 mine.residues[2], mine.residues[3]};
        if (quad == 0) shared.tile.poles[n] = mine.pole;
    }
    __device__ __forceinline__ void run() {
        const int slice = static_cast<int>(threadIdx.x) / kPoints, lane = static_cast<int>(threadIdx.x) % kPoints;
        const unsigned blocks_of_points = (args.point_count + kPoints - 1) / kPoints;
        const i64 first_row = static_cast<i64>(blockIdx.x / blocks_of_points) * kRows;
        const int point = static_cast<int>(blockIdx.x % blocks_of_points) * kPoints + lane;
        const i64 poles = row_of(args, args.poles, first_row), residues = row_of(args, args.residues, first_row);
        const float z = Io::load(args.points.data,
                                 row_of(args, args.points, first_row) + min(point, args.point_count - 1) * args.points.step)
                            .re;
        if (slice == 0) shared.careful[lane] = false;
        bool careful = false;
        float sums[kRows]{}, rests[kRows]{};
        Mine mine = ask(residues, poles, 0);
#pragma unroll 1
        for (int first = 0; first < args.pole_count; first += kTile) {
            __syncthreads();
            put(mine);
            __syncthreads();
            mine = ask(residues, poles, first + kTile);
            const int count = min(kTile, args.pole_count - first);
            float parts[kRows]{};
#pragma unroll 4
            for (int n = slice; n < count; n += kSlices) {
                const float distance = z - shared.tile.poles[n], weight = reciprocal_in_range(distance);
                careful |= !(fabsf(distance) >= 0x1p-126f && fabsf(distance) <= 0x1p126f);
                const auto& v = shared.tile.residues[n].of_row;
#pragma unroll
                for (int row = 0; row < kRows; row += 4) {
                    const float4 four = *reinterpret_cast<const float4*>(&v[row]);
                    parts[row] += four.x * weight;
                    parts[row + 1] += four.y * weight;
                    parts[row + 2] += four.z * weight;
                    parts[row + 3] += four.w * weight;
                }
            }
#pragma unroll
            for (int row = 0; row < kRows; ++row) One::add_with_rest(sums[row], rests[row], parts[row]);
        }
        __syncthreads();  // the tile has been read, and nobody is careful yet
#pragma unroll
        for (int row = 0; row < kRows; ++row) shared.sums[slice][row][lane] = sums[row] - rests[row];
        if (careful) shared.careful[lane] = true;
        __syncthreads();
        if (point < args.point_count) finish(first_row + slice, slice, lane, point);
    }
    // A row a warp.
    __device__ __forceinline__ void finish(i64 row, int own, int lane, int point) const {
        float sum = 0.f, rest = 0.f;
#pragma unroll
        for (int slice = 0; slice < kSlices; ++slice) One::add_with_rest(sum, rest, shared.sums[slice][own][lane]);
        typename Io::Number whole{sum, 0.f};
        if (shared.careful[lane] || !isfinite(sum)) [[unlikely]]
            whole = One{args, 0}.sum_carefully(row, point);
        Io::store(args.out, row * args.point_count + point, whole);
    }
};

template <CauchyBatchConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 1) cauchy_batch(const __grid_constant__ CauchyArgs args) {
    __shared__ CauchyBatchSharedPlan shared;
    CauchyBatch<kConfig>{args, shared}.run();
}

}  // namespace gdn_cuda::structured
