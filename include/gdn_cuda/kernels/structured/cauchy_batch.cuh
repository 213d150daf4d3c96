// structured/cauchy_batch: real structured/cauchy for sixteen rows of residues at a time over the same poles and points: the
// product of the residues with the matrix 1 / (point - pole), whose elements are computed on the fly.
//
// Tensor cores compute the product by 3xTF32 (tf32.cuh). A block has 32 points; each of its warps takes every sixteenth group
// of 32 poles and stores their residues, split into two tf32 parts, to its own shared memory, while it prefetches the next
// group's into registers. A lane computes the reciprocals of its own B fragment. Accumulators cover eight poles and start at 0;
// they are summed in registers, rounded to nearest, since tensor cores truncate; sums of groups are added with Kahan
// compensation. The warps' sums are added through shared memory, in a fixed order.
//
// Distances are exact where poles are close. Results are recomputed in fp64 for points that coincide with poles or are far
// from 0; for sums that are not finite or close to 0 (below 2^-22 if a residue is below 2^-100, whose low part tf32 truncates
// too much); and for all points of a block if a pole is far from 0, or is close to 0 with a residue below 2^-100.
//
// Bound: arithmetic. A warp takes 614 instructions for a group (fp32, sm_90a): 192 for 32 differences, reciprocals and their
// splits a lane, 64 to split residues, 48 mma, 128 to add up their results, and the rest for loads, stores, range checks and
// addresses. On an H200, 16 rows over 4096 poles at 4096 points reach 62 % of the issue rate (docs/benchmarks/structured.md).
#pragma once

#include <gdn_cuda/kernels/common/tf32.cuh>
#include <gdn_cuda/kernels/structured/cauchy.cuh>
#include <gdn_cuda/kernels/structured/cauchy/batch_plan.cuh>

namespace gdn_cuda::structured {

template <CauchyBatchConfig kConfig>
struct CauchyBatch {
    using Shared = CauchyBatchSharedPlan;
    using Operand = CauchyBatchOperand;
    using Io = ElementType<kConfig.io>;
    using One = Cauchy<CauchyConfig{.io = kConfig.io, .conj = false, .rows = 1, .points = 1, .threads = 1, .tile = 1}>;
    static constexpr int kRows = kConfig.kRows, kWarps = kConfig.kWarps, kPoints = kConfig.kPoints, kGroup = kConfig.kGroup;
    static constexpr int kColumns = kPoints / 8, kSteps = kGroup / Operand::kPoles;
    static constexpr float kFar = 0x1p90f;  // the reciprocal of anything larger does not split accurately
    static_assert(kRows == 16 && kRows == kWarps && kGroup == 32 && kPoints == 32);

    const CauchyArgs& args;
    Shared& shared;
    int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;

    struct PoleResidues {
        float residues[kRows], pole;
    };
    // This lane's pole of a group, and its residues. Past the last pole, residues and reciprocals are 0.
    __device__ __forceinline__ PoleResidues prefetch(i64 residues, i64 poles, int first) const {
        PoleResidues loaded{{}, __uint_as_float(0x7f800000u)};
        const int n = first + lane;
        if (n >= args.pole_count) return loaded;
        const i64 row_stride = args.residues.stride[args.leading - 1], at = residues + n * args.residues.step;
#pragma unroll
        for (int row = 0; row < kRows; ++row) loaded.residues[row] = Io::load(args.residues.data, at + row * row_stride).re;
        loaded.pole = Io::load(args.poles.data, poles + n * args.poles.step).re;
        return loaded;
    }
    __device__ __forceinline__ void store_group(const PoleResidues& loaded) {
        auto& group = shared.groups[warp];
        const int step = lane / Operand::kPoles, by_lane = lane % Operand::kPoles / 2, which = lane % 2;
#pragma unroll
        for (int row = 0; row < kRows; row += 2) {
            const TwoParts a = TwoParts::nearest(loaded.residues[row]), b = TwoParts::nearest(loaded.residues[row + 1]);
            *reinterpret_cast<uint2*>(group.high[step].by_lane[row / 2 * 4 + by_lane][which]) = {a.high, b.high};
            *reinterpret_cast<uint2*>(group.residual[step].by_lane[row / 2 * 4 + by_lane][which]) = {a.residual, b.residual};
        }
        group.poles[lane] = loaded.pole;
        check_range(loaded);
    }
    // The part of a small residue that tf32 truncates, at most 2^-112, is significant where the sum is small too, or within
    // 2^-66 of its pole: only poles within 2^-40 of 0 can have points that close.
    __device__ __forceinline__ void check_range(const PoleResidues& loaded) {
        bool recompute_all = fabsf(loaded.pole) > kFar && isfinite(loaded.pole);
        if constexpr (kConfig.io != DType::f16) {
            constexpr unsigned kSmall = 2 * 0x0d800000u - 1;  // 2^-100, encoded like min_bits
            unsigned min_bits = ~0u;                          // twice the bits, less 1: drops the sign, zeros sort last
#pragma unroll
            for (int row = 0; row < kRows; ++row) min_bits = min(min_bits, 2 * __float_as_uint(loaded.residues[row]) - 1);
            if (min_bits < kSmall) {
                shared.min_sum = 0x1p-22f;
                recompute_all = recompute_all || fabsf(loaded.pole) < 0x1p-40f;
            }
        }
        if (recompute_all) shared.recompute_all = true;
    }
    // Multiplies eight poles of a group. `parts` holds row 2 g at points 2 t and 2 t + 1 of eight, then row 2 g + 1 (g = lane /
    // 4, t = lane % 4).
    __device__ __forceinline__ void add_step(float (&parts)[kColumns][4], const float (&z)[kColumns], int step) const {
        const auto& group = shared.groups[warp];
        const uint4 high = *reinterpret_cast<const uint4*>(group.high[step].by_lane[lane]),
                    residual = *reinterpret_cast<const uint4*>(group.residual[step].by_lane[lane]);
        const float2 poles = *reinterpret_cast<const float2*>(&group.poles[step * Operand::kPoles + lane % 4 * 2]);
        const TwoParts residues[4] = {{high.x, residual.x}, {high.y, residual.y}, {high.z, residual.z}, {high.w, residual.w}};
#pragma unroll
        for (int column = 0; column < kColumns; ++column) {
            float sums[4]{};
            add_product_fp32(sums, residues, TwoParts::nearest(reciprocal_in_range(z[column] - poles.x)),
                             TwoParts::nearest(reciprocal_in_range(z[column] - poles.y)));
#pragma unroll
            for (int i = 0; i < 4; ++i) parts[column][i] += sums[i];
        }
    }
    // The block's first row and point, recomputed where needed: registers are full.
    struct Place {
        unsigned first_row;
        int first_point;

        __device__ __forceinline__ explicit Place(const CauchyArgs& args) {
            const unsigned block = opaque(blockIdx.x), point_blocks = (args.point_count + kPoints - 1) / kPoints,
                           rows = block / point_blocks;
            first_row = rows * kRows;
            first_point = static_cast<int>(block - rows * point_blocks) * kPoints;
        }
    };
    __device__ __forceinline__ void run() {
        const auto [first_row, first_point] = Place(args);
        const i64 poles = row_offset(args, args.poles, first_row), residues = row_offset(args, args.residues, first_row);
        const auto load_point = [&, points = row_offset(args, args.points, first_row)](int point) {
            return Io::load(args.points.data, points + min(point, args.point_count - 1) * args.points.step).re;
        };
        if (warp == 0) {
            shared.recompute[lane] = fabsf(load_point(first_point + lane)) > kFar;
            shared.recompute_all = false;
            shared.min_sum = 1.f / kFar;
        }
        float z[kColumns];
#pragma unroll
        for (int column = 0; column < kColumns; ++column) z[column] = load_point(first_point + 8 * column + lane / 4);
        float sums[kColumns][4]{}, compensations[kColumns][4]{};
        __syncthreads();
        PoleResidues loaded = prefetch(residues, poles, warp * kGroup);
#pragma unroll 1
        for (int first = warp * kGroup; first < args.pole_count; first += kWarps * kGroup) {
            __syncwarp();
            store_group(loaded);
            __syncwarp();
            loaded = prefetch(residues, poles, first + kWarps * kGroup);
            float parts[kColumns][4]{};
#pragma unroll
            for (int step = 0; step < kSteps; ++step) add_step(parts, z, step);
#pragma unroll
            for (int column = 0; column < kColumns; ++column)
#pragma unroll
                for (int i = 0; i < 4; ++i) One::add_kahan(sums[column][i], compensations[column][i], parts[column][i]);
        }
        __syncthreads();
#pragma unroll
        for (int column = 0; column < kColumns; ++column)
#pragma unroll
            for (int i = 0; i < 4; i += 2)
                *reinterpret_cast<float2*>(&shared.sums[warp][lane / 4 * 2 + i / 2][8 * column + lane % 4 * 2]) = {
                    sums[column][i] - compensations[column][i], sums[column][i + 1] - compensations[column][i + 1]};
        __syncthreads();
        finish();
    }
    // Recomputation: one row per warp, one point per lane.
    __device__ __forceinline__ void finish() const {
        const Place place(args);
        const unsigned row = place.first_row + warp;
        const int point = place.first_point + lane;
        if (point >= args.point_count) return;
        float sum = 0.f, residual = 0.f;
#pragma unroll
        for (int from = 0; from < kWarps; ++from) One::add_kahan(sum, residual, shared.sums[from][warp][lane]);
        typename Io::Number whole{sum, 0.f};
        if (shared.recompute[lane] || shared.recompute_all || !isfinite(sum) || (sum != 0.f && fabsf(sum) < shared.min_sum))
            [[unlikely]]
            whole = One{args, 0}.recompute_in_fp64(row, point);
        Io::store(args.out, static_cast<i64>(row) * args.point_count + point, whole);
    }
};

template <CauchyBatchConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 1) cauchy_batch(const __grid_constant__ CauchyArgs args) {
    extern __shared__ __align__(16) unsigned char memory[];
    CauchyBatch<kConfig>{args, *reinterpret_cast<CauchyBatchSharedPlan*>(memory)}.run();
}

}  // namespace gdn_cuda::structured
