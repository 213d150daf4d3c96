// Codes of states, and vectors that they are multiplied with, as pairs of fp16 for tensor cores.
#pragma once

#include <gdn_cuda/kernels/common/pairs.cuh>
#include <gdn_cuda/kernels/recurrence/state_codes.cuh>

namespace gdn_cuda::gdn {

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
        const __half2 difference = __hsub2(reinterpret_cast<const __half2&>(pair), __float2half2_rn(1024.f + 128.f));
        return reinterpret_cast<const unsigned&>(difference);
    }
};

// A power of two that makes a vector's largest element 1 to 2, so that it neither overflows nor vanishes in fp16.
struct UnitScale {
    float scale, inverse;

    __device__ __forceinline__ explicit UnitScale(float most) {
        const int exponent = min(max(__float_as_int(most) >> 23, 1), 253);  // both are normal
        scale = __int_as_float((254 - exponent) << 23), inverse = __int_as_float(exponent << 23);
    }
};

}  // namespace gdn_cuda::gdn
