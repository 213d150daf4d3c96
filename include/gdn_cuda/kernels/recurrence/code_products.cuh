// Products of int8 states with a key and a query by integer tensor products, without a conversion of codes.
//
// A warp has 16 rows as the left operand: lane (g, t) = (lane / 4, lane % 4) columns 64 i + 16 t up to + 15 of rows g and g + 8,
// as they are in memory. The right operand has key and query in fixed point, 22 bits and a sign, relative to the largest
// magnitude of their 32 columns: three planes of 8 bits each in columns 0 to 2 and 4 to 6. So a lane's 16 columns are half a
// group. Lanes t = 0, 1 and t = 2, 3 have columns of two groups, which have different scales: the operand is 0 for one half and
// then for the other.
//
// Sums of a group are exact. They become fp32, times the weight of their plane and the scale of their group, and are summed over
// groups and planes: as exact as multiply-adds in fp32.
#pragma once

#include <gdn_cuda/kernels/common/mma.cuh>
#include <gdn_cuda/kernels/recurrence/state_codes.cuh>

namespace gdn_cuda::gdn {

// Sums are in this unit, so that products of finite numbers that cancel each other do not overflow before.
constexpr float kCodeSumUnit = 0x1p13f;

template <int kHeadK>
struct CodeProducts {
    static constexpr int kVectors = kHeadK / 64, kGroups = kHeadK / kCodeGroup, kPerLane = 16 * kVectors;
    static_assert(kHeadK % 64 == 0);

    unsigned planes[kVectors][2][4];  // for lanes t = 0, 1, then for t = 2, 3
    float weights[kGroups];           // of columns 2 t; columns 2 t + 1 have 2^-8 times as much
    bool plain;                       // no element is above kMostPlain

    // The first of 16 columns that a lane has in vector i.
    __device__ __forceinline__ static int column(int i) { return 64 * i + threadIdx.x % 4 * 16; }
    // Lanes below 16 make planes of the key, the others of the query.
    __device__ __forceinline__ static bool has_query() { return threadIdx.x % 32 >= 16; }

    // x: the elements of the lane's vector (has_query) in its columns.
    __device__ __forceinline__ void make(const float (&x)[kPerLane]) {
        const int lane = threadIdx.x % 32, side = lane % 4 / 2, plane = lane / 4 % 4;
        const unsigned byte = plane < 3 ? 2 - plane : 0, mask = plane < 3 ? ~0u : 0u, selector = byte | (4 + byte) << 4;
        int exponents[kVectors], largest = 0;
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            float most = 0.f;
#pragma unroll
            for (int j = 0; j < 16; ++j) most = larger_magnitude(most, x[16 * i + j]);
            // Below 2^-90 the unit no longer follows.
            const int exponent = max(__float_as_int(largest_of_lanes<2>(most)) >> 23, kLeastExponent);
            const float inverse_unit = __int_as_float((2 * 127 + kBits - 1 - exponent) << 23);
            exponents[i] = exponent;
            largest = max(largest, exponent);
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                unsigned biased[4];  // 128 more in each of the lower three bytes: digits from -128 to 127
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    biased[e] = __float_as_uint(fmaf(x[16 * i + 4 * j + e], inverse_unit, kMagic)) - kMagicBits + 0x808080u;
                const unsigned low = __byte_perm(biased[0], biased[1], selector),
                               high = __byte_perm(biased[2], biased[3], selector);
                const unsigned digits = bias_codes(__byte_perm(low, high, 0x5410)) & mask;
                planes[i][0][j] = side == 0 ? digits : 0;
                planes[i][1][j] = side == 1 ? digits : 0;
            }
        }
        plain = __all_sync(0xffffffffu, largest < 127 + 60);
        // Columns 2 t and 2 t + 1 are planes of the key where t < 2: the first two, then the third and nothing.
        const int source = side * 16;
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
            const int exponent = __shfl_sync(0xffffffffu, exponents[group / 2], source + 2 * (group % 2));
            const int weight = exponent + (lane % 2 == 0 ? 16 : 0) - (kBits - 1) - kUnitBits;
            weights[group] = exponent == 255 ? quiet_nan() : __int_as_float(weight << 23);
        }
    }

    // Sums of rows g and g + 8, in kCodeSumUnit: with the key in lanes t = 0, 1, with the query in t = 2, 3.
    // codes[r][i]: the words of a vector; scales[r]: all of the row.
    __device__ __forceinline__ void multiply(float (&sums)[2], const unsigned (&codes)[2][kVectors][4],
                                             const float (&scales)[2][kGroups]) const {
        constexpr unsigned kStart[4] = {kMagicBits, kMagicBits, kMagicBits, kMagicBits};
        sums[0] = sums[1] = 0.f;
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            const auto &upper = codes[0][i], &lower = codes[1][i];
            unsigned products[2][4];
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                mma_m16n8k32_s8(products[side], {upper[0], lower[0], upper[1], lower[1]}, planes[i][side][0], planes[i][side][1],
                                kStart);
                mma_m16n8k32_s8(products[side], {upper[2], lower[2], upper[3], lower[3]}, planes[i][side][2], planes[i][side][3],
                                products[side]);
            }
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
