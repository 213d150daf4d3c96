// scan/rglru and scan/rglru_backward: the decay and the multiplier of a token.
#pragma once

#include <gdn_cuda/kernels/common/numeric.cuh>

namespace gdn_cuda::scan {

__device__ __forceinline__ float minus_infinity() {
    return __int_as_float(0xff800000);
}
constexpr float kNearOne = -0.5f;  // for logarithms above this the series is used

// 2^x - 1 for -1/2 < x <= 1/2, relative error 2e-7.
__device__ __forceinline__ float power_minus_one(float x) {
    float p = 1.5252734e-5f;  // ln(2)^k / k!
    p = fmaf(p, x, 1.5403530e-4f);
    p = fmaf(p, x, 1.3333558e-3f);
    p = fmaf(p, x, 9.6181291e-3f);
    p = fmaf(p, x, 5.5504109e-2f);
    p = fmaf(p, x, 0.24022651f);
    p = fmaf(p, x, 0.69314718f);
    return x * p;
}

// A decay a = 2^log and sqrt(1 - a^2), which is NaN for a > 1.
struct RglruGate {
    float decay, root;

    __device__ __forceinline__ explicit RglruGate(float log) {
        const bool near = log > kNearOne;
        const float power = exp2_fast(log), lost = near ? power_minus_one(log) : power - 1.f;
        decay = near ? 1.f + lost : power;
        root = sqrt_fast(-lost * (2.f + lost));
    }
};

// log2 A, finite for A = 0, so that its product with delta = 0 is 0 (0^0 = 1).
__device__ __forceinline__ float log_of_base(float a) {
    return at_least(log2f(a), -1e30f);
}

}  // namespace gdn_cuda::scan
