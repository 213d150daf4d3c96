// An update of int8 states by pairs of fp16: half the instructions of fp32's.
//
// A group is in a unit that follows its state and its update: that of its decayed scale, in which codes are exact, or, where
// the update is 2^13 times larger, so much of that. The key, its factor and the sum are rounded to fp16, each by 1/16 of a step
// at most where it is as large as the group's largest value, and the sum to a code. Where any group of a warp is beyond 2^100,
// not finite, or below 2^-100 altogether, it takes fp32.
#pragma once

#include <gdn_cuda/kernels/recurrence/code_pairs.cuh>

namespace gdn_cuda::gdn {

__device__ __forceinline__ unsigned multiply_add_pairs(unsigned a, unsigned b, unsigned c) {
    unsigned sum;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
    return sum;
}

// The larger magnitude in each half, with any sign.
__device__ __forceinline__ unsigned larger_pair(unsigned a, unsigned b) {
    if constexpr (kCompiledCapability > 0 && kCompiledCapability < 86) {  // 0: compiled for a CPU
        return larger<DType::f16>(a & 0x7fff7fffu, b);
    } else {
        unsigned most;
        asm("max.xorsign.abs.f16x2 %0, %1, %2;" : "=r"(most) : "r"(a), "r"(b));
        return most;
    }
}

// 16 columns of a key, in a unit; the lane and the adjacent one have a group together.
struct CodeKey {
    unsigned pairs[8];
    float unit;

    // The whole warp.
    __device__ __forceinline__ void make(const float (&key)[16]) {
        float most = 0.f;
#pragma unroll
        for (const float x : key) most = larger_magnitude(most, x);
        const UnitScale by(largest_of_lanes<2>(most));
        unit = by.inverse;
#pragma unroll
        for (int i = 0; i < 8; ++i) pairs[i] = pack<DType::f16>(key[2 * i] * by.scale, key[2 * i + 1] * by.scale);
    }
    __device__ __forceinline__ float operator[](int i) const {
        const float2 pair = unpack<DType::f16>(pairs[i / 2]);
        return (i % 2 == 0 ? pair.x : pair.y) * unit;
    }
};

// 16 columns of two rows: S <- scale S + update k^T, in place of their codes. The pair of lanes that has a group finds its new
// scale together.
struct CodeUpdate {
    unsigned exponent;   // kCodeExponent
    unsigned exponents;  // kPairExponents; both in registers, so that selectors are immediate operands
    static constexpr unsigned kPairExponents = 0x64646464u;

    // The whole warp.
    __device__ __forceinline__ void operator()(unsigned (&upper)[4], unsigned (&lower)[4], float (&scales)[2],
                                               const float (&updates)[2], const CodeKey& key) const {
        const float mine[2] = {updates[0] * key.unit, updates[1] * key.unit};
        float units[2];
        bool plain = true;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            units[r] = at_least(scales[r], fabsf(mine[r]) * 0x1p-13f);
            plain = plain && units[r] > 0x1p-100f && units[r] < 0x1p100f;
        }
        if (__all_sync(0xffffffffu, plain))
            by_pairs(upper, lower, scales, mine, units, key);
        else
            by_floats(upper, lower, scales, updates, key);
    }

  private:
    __device__ __forceinline__ void by_pairs(unsigned (&upper)[4], unsigned (&lower)[4], float (&scales)[2],
                                             const float (&updates)[2], const float (&units)[2], const CodeKey& key) const {
        unsigned x[2][8], most[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float inverse = reciprocal_fast(units[r]), kept = scales[r] * inverse, added = updates[r] * inverse;
            const unsigned keeps = pack<DType::f16>(kept, kept), adds = pack<DType::f16>(added, added),
                           bias = pack<DType::f16>(-1152.f * kept, -1152.f * kept);
            const auto& words = r == 0 ? upper : lower;
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const unsigned biased = bias_codes(words[j]),
                               pairs[2] = {__byte_perm(biased, exponents, 0x4140), __byte_perm(biased, exponents, 0x4342)};
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    x[r][2 * j + i] = multiply_add_pairs(adds, key.pairs[2 * j + i], multiply_add_pairs(pairs[i], keeps, bias));
                    most[r] = j + i == 0 ? x[r][0] : larger_pair(most[r], x[r][2 * j + i]);
                }
            }
        }
        unsigned both = larger_pair(__byte_perm(most[0], most[1], 0x5410), __byte_perm(most[0], most[1], 0x7632));
        both = larger_pair(both, __shfl_xor_sync(0xffffffffu, both, 1)) & 0x7fff7fffu;
        const float2 largest = unpack<DType::f16>(both);
        constexpr unsigned kMagic = 0x66006600u;  // 1.5 * 2^10: the sum with an integer has its bits in the lower byte
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float whole = r == 0 ? largest.x : largest.y;
            const float wanted = fminf(reciprocal_fast(whole) * 127.f, 0x1p15f);
            const unsigned inverse = pack<DType::f16>(wanted, wanted);
            scales[r] = whole == 0.f ? 0.f : units[r] * reciprocal_fast(unpack<DType::f16>(inverse).x);
            auto& words = r == 0 ? upper : lower;
#pragma unroll
            for (int j = 0; j < 4; ++j)
                words[j] = __byte_perm(multiply_add_pairs(x[r][2 * j], inverse, kMagic),
                                       multiply_add_pairs(x[r][2 * j + 1], inverse, kMagic), 0x6420);
        }
    }
    // Rarely taken.
    __device__ __forceinline__ void by_floats(unsigned (&upper)[4], unsigned (&lower)[4], float (&scales)[2],
                                              const float (&updates)[2], const CodeKey& key) const {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            auto& words = r == 0 ? upper : lower;
            float x[16], most = 0.f;
#pragma unroll
            for (int j = 0; j < 16; ++j) {
                x[j] = fmaf(updates[r], key[j], scales[r] * code_of(bias_codes(words[j / 4]), j % 4, exponent));
                most = larger_magnitude(most, x[j]);
            }
            scales[r] = scale_of_largest(largest_of_lanes<2>(most));
            bound_elements<16>(x, scales[r]);
            const float inverse = inverse_of_scale(scales[r]);
#pragma unroll
            for (int j = 0; j < 4; ++j) words[j] = pack_codes(x + 4 * j, inverse);
        }
    }
};

}  // namespace gdn_cuda::gdn
