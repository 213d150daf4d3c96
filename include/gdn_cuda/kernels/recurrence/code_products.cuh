// Products of int8 states with a key and a query by integer tensor products, without a conversion of codes.
//
// A warp has 16 rows as the left operand: lane (g, t) = (lane / 4, lane % 4) columns 64 i + 16 t up to + 15 of rows g and g +
// 8, as they are in memory. The right operand has key and query in fixed point, 22 bits and a sign, relative to the largest
// magnitude of their 32 columns, as three planes of 8 bits each. So a lane's 16 columns are half a group: lanes t = 0, 1 and
// t = 2, 3 have columns of two groups, which have different scales, and the operand is 0 for one half and then for the other.
//
// Sums of a group are exact. They become fp32, times the weight of their plane and the scale of their group, and are summed
// over groups and planes: as exact as multiply-adds in fp32. A key that is not finite makes its sums NaN.
#pragma once

#include <gdn_cuda/kernels/common/mma.cuh>
#include <gdn_cuda/kernels/recurrence/code_operand.cuh>
#include <gdn_cuda/kernels/recurrence/state_codes.cuh>

namespace gdn_cuda::gdn {

// Sums are in this unit, so that products of finite numbers that cancel each other do not overflow before.
constexpr float kCodeSumUnit = 0x1p13f;

template <int kHeadK>
struct CodeProducts {
    static constexpr int kVectors = kHeadK / 64, kGroups = kHeadK / kCodeGroup;
    static constexpr int kMade = kHeadK / 32;  // columns of which a lane makes the planes: those from kMade * lane on
    static_assert(kHeadK == 128);
    using Operand = CodeOperand<kHeadK>;

    // The first of 16 columns that a lane has in vector i.
    __device__ __forceinline__ static int column(int i) { return 64 * i + threadIdx.x % 4 * 16; }

    __device__ __forceinline__ static void clear(Operand& operand) {
        reinterpret_cast<unsigned*>(operand.planes[Operand::kZeroPlane])[threadIdx.x % 32] = 0;
    }
    // The whole warp: the lane's columns of the key, or of the query.
    __device__ __forceinline__ static void make(Operand& operand, const float (&x)[kMade], bool is_query) {
        constexpr int kLanes = kCodeGroup / kMade;  // that have a group
        const int lane = threadIdx.x % 32;
        float most = 0.f;
#pragma unroll
        for (const float element : x) most = larger_magnitude(most, element);
        // Below 2^-90 the unit no longer follows.
        const int exponent = max(__float_as_int(largest_of_lanes<kLanes>(most)) >> 23, kLeastExponent);
        const float inverse_unit = __int_as_float((2 * 127 + kBits - 1 - exponent) << 23);
        unsigned biased[kMade];  // 128 more in each of the lower three bytes, whose digits are from -128 to 127
#pragma unroll
        for (int i = 0; i < kMade; ++i) biased[i] = __float_as_uint(fmaf(x[i], inverse_unit, kMagic)) - kMagicBits + 0x808080u;
        const unsigned low = __byte_perm(biased[0], biased[1], 0x5140), high = __byte_perm(biased[2], biased[3], 0x5140);
        const unsigned planes[3] = {
            __byte_perm(__byte_perm(biased[0], biased[1], 0x0062), __byte_perm(biased[2], biased[3], 0x0062), 0x5410),
            __byte_perm(low, high, 0x7632), __byte_perm(low, high, 0x5410)};
#pragma unroll
        for (int p = 0; p < 3; ++p)
            reinterpret_cast<unsigned*>(operand.planes[(is_query ? 4 : 0) + p])[lane] = bias_codes(planes[p]);
        if (lane % kLanes < 2) {
            const int weight = exponent + (lane % kLanes == 0 ? 16 : 0) - (kBits - 1) - kUnitBits;
            operand.weights[(is_query ? 2 : 0) + lane % kLanes][lane / kLanes] =
                exponent == 255 ? quiet_nan() : __int_as_float(weight << 23);
        }
    }

    // Sums of rows g and g + 8, in kCodeSumUnit: with the key in lanes t = 0, 1, with the query in t = 2, 3.
    // codes[r][i]: the words of a vector; scales[r]: all of the row.
    __device__ __forceinline__ static void multiply(float (&sums)[2], const Operand& operand,
                                                    const unsigned (&codes)[2][kVectors][4],
                                                    const float (&scales)[2][kGroups]) {
        constexpr unsigned kStart[4] = {kMagicBits, kMagicBits, kMagicBits, kMagicBits};
        const int lane = threadIdx.x % 32, t = lane % 4, plane = lane / 4 % 4 == 3 ? Operand::kZeroPlane : lane / 4;
        Vector<float, kGroups, true> weights;  // for columns 2 t
        weights.load(operand.weights[t]);
        sums[0] = sums[1] = 0.f;
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            const auto &upper = codes[0][i], &lower = codes[1][i];
            const unsigned left[2][4] = {{upper[0], lower[0], upper[1], lower[1]}, {upper[2], lower[2], upper[3], lower[3]}};
            unsigned products[2][4];
            uint4 right[2];
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                const auto& from = operand.planes[t / 2 == side ? plane : Operand::kZeroPlane];
                right[side] = *reinterpret_cast<const uint4*>(from + column(i));
            }
#pragma unroll
            for (int side = 0; side < 2; ++side) mma_m16n8k32_s8(products[side], left[0], right[side].x, right[side].y, kStart);
#pragma unroll
            for (int side = 0; side < 2; ++side)
                mma_m16n8k32_s8(products[side], left[1], right[side].z, right[side].w, products[side]);
#pragma unroll
            for (int side = 0; side < 2; ++side)
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    const float first = __uint_as_float(products[side][2 * r]) - kMagic,
                                second = __uint_as_float(products[side][2 * r + 1]) - kMagic;
                    const int group = 2 * i + side;
                    sums[r] = fmaf(fmaf(second, 0x1p-8f, first) * weights[group], scales[r][group], sums[r]);
                }
        }
#pragma unroll
        for (float& sum : sums) sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    }

  private:
    static constexpr int kBits = 22, kUnitBits = 13, kLeastExponent = 127 - 90;
    static constexpr float kMagic = 12582912.f;  // 1.5 * 2^23: its sum with an integer has that in its lower bits
    static constexpr unsigned kMagicBits = 0x4b400000u;
    static_assert(kCodeSumUnit == 1 << kUnitBits);
};

}  // namespace gdn_cuda::gdn
