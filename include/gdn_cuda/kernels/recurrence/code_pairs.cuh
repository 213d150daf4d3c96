// Codes of states as pairs of fp16, for tensor cores and arithmetic of two elements an instruction.
#pragma once

#include <gdn_cuda/kernels/common/pairs.cuh>
#include <gdn_cuda/kernels/recurrence/state_codes.cuh>

namespace gdn_cuda::gdn {

__device__ __forceinline__ __half2 as_half2(unsigned pair) {
    return reinterpret_cast<const __half2&>(pair);
}
__device__ __forceinline__ unsigned bits_of_pair(__half2 pair) {
    return reinterpret_cast<const unsigned&>(pair);
}

// Four codes: bytes of the mantissa of 1024, less that and their bias.
struct CodePairs {
    unsigned low, high;

    __device__ __forceinline__ explicit CodePairs(unsigned codes) {
        constexpr unsigned kExponents = 0x64646464u;
        const unsigned biased = bias_codes(codes);
        low = unbiased(__byte_perm(biased, kExponents, 0x4140)), high = unbiased(__byte_perm(biased, kExponents, 0x4342));
    }

  private:
    __device__ __forceinline__ static unsigned unbiased(unsigned pair) {
        return bits_of_pair(__hsub2(as_half2(pair), __float2half2_rn(1024.f + 128.f)));
    }
};
// The codes of two pairs times `ratio`, rounded: the sum with 1536 has no bits for fractions, and its lowest byte is a code.
__device__ __forceinline__ unsigned codes_of_pairs(unsigned low, unsigned high, __half2 ratio) {
    const __half2 one = __float2half2_rn(1536.f);
    return __byte_perm(bits_of_pair(__hfma2(as_half2(low), ratio, one)), bits_of_pair(__hfma2(as_half2(high), ratio, one)),
                       0x6420);
}

// A power of two that makes a vector's largest element 1 to 2, so that it neither overflows nor vanishes in fp16.
struct UnitScale {
    float scale, inverse;

    __device__ __forceinline__ explicit UnitScale(float most) {
        const int exponent = min(max(__float_as_int(most) >> 23, 1), 253);  // both are normal
        scale = __int_as_float((254 - exponent) << 23), inverse = __int_as_float(exponent << 23);
    }
};

}  // namespace gdn_cuda::gdn
