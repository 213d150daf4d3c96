// structured/cauchy_batch: real sums of residues over distances to poles, for sixteen rows of residues at a time over the same
// poles and points: the product of the residues with a matrix that is made as it is needed, 1 / (point - pole).
//
// Tensor cores multiply: a block has 32 points, a warp of it every sixteenth group of 32 poles, whose residues it brings, in
// the two parts that three products in tf32 take (mma.cuh), to a place of its own in shared memory; those of its next group are
// on their way in registers meanwhile. A lane's reciprocals are where the product wants them. Sums over eight poles begin at 0
// and are added up here, rounded to nearest, since tensor cores cut off; those of a group with what rounding leaves. Warps'
// sums meet in shared memory, in a fixed order.
//
// Distances are exact where poles are close. What leaves the range that its parts need, is summed once more in double
// precision: points that lie on poles or far from 0, and sums that are not finite or close to 0, below 2^-22 where there is a
// residue below 2^-100, of whose second part tf32 keeps too little; all of a block where a pole is far from 0, or close to it
// and has such a residue.
//
// Bound: arithmetic. A reciprocal with its parts takes six instructions, and eight of them twelve products: with the residues'
// parts, 19 instructions for 32 reciprocals and 512 products, of which tensor cores are busy for 12 clocks. On an H200, 16 rows
// over 4096 poles at 4096 points, 62 % of the rate at which instructions can be issued (docs/benchmarks/structured.md).
#pragma once

#include <gdn_cuda/kernels/common/mma.cuh>
#include <gdn_cuda/kernels/structured/cauchy.cuh>
#include <gdn_cuda/kernels/structured/cauchy_batch_plan.cuh>

namespace gdn_cuda::structured {

template <CauchyBatchConfig kConfig>
struct CauchyBatch {
    using Shared = CauchyBatchSharedPlan;
    using Operand = CauchyBatchOperand;
    using Io = Numbers<kConfig.io>;
    using One = Cauchy<CauchyConfig{.io = kConfig.io, .conj = false, .rows = 1, .points = 1, .threads = 1, .tile = 1}>;
    static constexpr int kRows = kConfig.kRows, kWarps = kConfig.kWarps, kPoints = kConfig.kPoints, kGroup = kConfig.kGroup;
    static constexpr int kColumns = kPoints / 8, kSteps = kGroup / Operand::kPoles;
    static constexpr float kFar = 0x1p90f;  // parts of a reciprocal of more are no good
    static_assert(kRows == 16 && kRows == kWarps && kGroup == 32 && kPoints == 32);

    const CauchyArgs& args;
    Shared& shared;
    int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;

    struct Mine {
        float residues[kRows], pole;
    };
    // Of a group, one pole and its residues. Past the last pole residues are 0, and reciprocals too.
    __device__ __forceinline__ Mine ask(i64 residues, i64 poles, int first) const {
        Mine mine{{}, __uint_as_float(0x7f800000u)};
        const int n = first + lane;
        if (n >= args.pole_count) return mine;
        const i64 row_stride = args.residues.stride[args.leading - 1], at = residues + n * args.residues.step;
#pragma unroll
        for (int row = 0; row < kRows; ++row) mine.residues[row] = Io::load(args.residues.data, at + row * row_stride).re;
        mine.pole = Io::load(args.poles.data, poles + n * args.poles.step).re;
        return mine;
    }
    __device__ __forceinline__ void put(const Mine& mine) {
        auto& group = shared.groups[warp];
        const int step = lane / Operand::kPoles, of_lane = lane % Operand::kPoles / 2, which = lane % 2;
#pragma unroll
        for (int row = 0; row < kRows; row += 2) {
            const TwoParts a = TwoParts::nearest(mine.residues[row]), b = TwoParts::nearest(mine.residues[row + 1]);
            *reinterpret_cast<uint2*>(group.high[step].of_lane[row / 2 * 4 + of_lane][which]) = {a.high, b.high};
            *reinterpret_cast<uint2*>(group.rest[step].of_lane[row / 2 * 4 + of_lane][which]) = {a.rest, b.rest};
        }
        group.poles[lane] = mine.pole;
        look(mine);
    }
    // What is dropped of a small residue, 2^-112 at most, counts where the sum is small too, or within 2^-66 of its pole: other
    // numbers lie that close only to poles within 2^-40 of 0.
    __device__ __forceinline__ void look(const Mine& mine) {
        bool all_careful = fabsf(mine.pole) > kFar && isfinite(mine.pole);
        if constexpr (kConfig.io != DType::f16) {
            constexpr unsigned kSmall = 2 * 0x0d800000u - 1;  // of 2^-100
            unsigned least = ~0u;                             // twice a number's bits, less 1: of zeros the most
#pragma unroll
            for (int row = 0; row < kRows; ++row) least = min(least, 2 * __float_as_uint(mine.residues[row]) - 1);
            if (least < kSmall) {
                shared.least_sum = 0x1p-22f;
                all_careful = all_careful || fabsf(mine.pole) < 0x1p-40f;
            }
        }
        if (all_careful) shared.all_careful = true;
    }
    // Of a group, eight poles: sums of row 2 g, points 2 t and 2 t + 1 of eight, then of row 2 g + 1.
    __device__ __forceinline__ void add_step(float (&parts)[kColumns][4], const float (&z)[kColumns], int step) const {
        const auto& group = shared.groups[warp];
        const uint4 high = *reinterpret_cast<const uint4*>(group.high[step].of_lane[lane]),
                    rest = *reinterpret_cast<const uint4*>(group.rest[step].of_lane[lane]);
        const float2 poles = *reinterpret_cast<const float2*>(&group.poles[step * Operand::kPoles + lane % 4 * 2]);
        const TwoParts residues[4] = {{high.x, rest.x}, {high.y, rest.y}, {high.z, rest.z}, {high.w, rest.w}};
#pragma unroll
        for (int column = 0; column < kColumns; ++column) {
            float sums[4]{};
            add_product_fp32(sums, residues, TwoParts::nearest(reciprocal_in_range(z[column] - poles.x)),
                             TwoParts::nearest(reciprocal_in_range(z[column] - poles.y)));
#pragma unroll
            for (int i = 0; i < 4; ++i) parts[column][i] += sums[i];
        }
    }
    // Of a block. Asked for where it is needed: registers are full.
    struct Place {
        unsigned first_row;
        int first_point;

        __device__ __forceinline__ explicit Place(const CauchyArgs& args) {
            const unsigned block = forgotten(blockIdx.x), blocks_of_points = (args.point_count + kPoints - 1) / kPoints,
                           rows = block / blocks_of_points;
            first_row = rows * kRows;
            first_point = static_cast<int>(block - rows * blocks_of_points) * kPoints;
        }
    };
    __device__ __forceinline__ void run() {
        const auto [first_row, first_point] = Place(args);
        const i64 poles = line_of(args, args.poles, first_row), residues = line_of(args, args.residues, first_row);
        const auto load_point = [&, points = line_of(args, args.points, first_row)](int point) {
            return Io::load(args.points.data, points + min(point, args.point_count - 1) * args.points.step).re;
        };
        if (warp == 0) {
            shared.careful[lane] = fabsf(load_point(first_point + lane)) > kFar;
            shared.all_careful = false;
            shared.least_sum = 1.f / kFar;
        }
        float z[kColumns];
#pragma unroll
        for (int column = 0; column < kColumns; ++column) z[column] = load_point(first_point + 8 * column + lane / 4);
        float sums[kColumns][4]{}, rests[kColumns][4]{};
        __syncthreads();
        Mine mine = ask(residues, poles, warp * kGroup);
#pragma unroll 1
        for (int first = warp * kGroup; first < args.pole_count; first += kWarps * kGroup) {
            __syncwarp();
            put(mine);
            __syncwarp();
            mine = ask(residues, poles, first + kWarps * kGroup);
            float parts[kColumns][4]{};
#pragma unroll
            for (int step = 0; step < kSteps; ++step) add_step(parts, z, step);
#pragma unroll
            for (int column = 0; column < kColumns; ++column)
#pragma unroll
                for (int i = 0; i < 4; ++i) One::add_with_rest(sums[column][i], rests[column][i], parts[column][i]);
        }
        __syncthreads();
#pragma unroll
        for (int column = 0; column < kColumns; ++column)
#pragma unroll
            for (int i = 0; i < 4; i += 2)
                *reinterpret_cast<float2*>(&shared.sums[warp][lane / 4 * 2 + i / 2][8 * column + lane % 4 * 2]) = {
                    sums[column][i] - rests[column][i], sums[column][i + 1] - rests[column][i + 1]};
        __syncthreads();
        finish();
    }
    // A row a warp, a point a lane.
    __device__ __forceinline__ void finish() const {
        const Place place(args);
        const unsigned row = place.first_row + warp;
        const int point = place.first_point + lane;
        if (point >= args.point_count) return;
        float sum = 0.f, rest = 0.f;
#pragma unroll
        for (int from = 0; from < kWarps; ++from) One::add_with_rest(sum, rest, shared.sums[from][warp][lane]);
        typename Io::Number whole{sum, 0.f};
        if (shared.careful[lane] || shared.all_careful || !isfinite(sum) || (sum != 0.f && fabsf(sum) < shared.least_sum))
            [[unlikely]]
            whole = One{args, 0}.sum_carefully(row, point);
        Io::store(args.out, static_cast<i64>(row) * args.point_count + point, whole);
    }
};

template <CauchyBatchConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 1) cauchy_batch(const __grid_constant__ CauchyArgs args) {
    extern __shared__ __align__(16) unsigned char memory[];
    CauchyBatch<kConfig>{args, *reinterpret_cast<CauchyBatchSharedPlan*>(memory)}.run();
}

}  // namespace gdn_cuda::structured
