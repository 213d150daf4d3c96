#pragma once
#include <cuda_emulation.hpp>
#include <gdn_cuda/kernels/common/types.cuh>
namespace gdn_cuda {
inline float to_float(float x) { return x; }
template <class T> inline T from_float(float x);
template <> inline float from_float<float>(float x) { return x; }
template <> inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) { return __float2bfloat16(x); }
template <> inline __half from_float<__half>(float x) { return __float2half(x); }
inline unsigned load_raw(const Tagged& from, i64 at) {
    if (from.type == DType::f32) return static_cast<const unsigned*>(from.data)[at];
    return static_cast<const unsigned short*>(from.data)[at];
}
inline float number_of(unsigned raw, DType type) {
    return type == DType::f16 ? __half2float(__ushort_as_half((unsigned short)raw)) : __uint_as_float(type == DType::bf16 ? raw << 16 : raw);
}
inline float load_number(const Tagged& f, i64 at) { return number_of(load_raw(f, at), f.type); }
inline i64 load_index(const Tagged& f, i64 at) { return f.type == DType::i64 ? static_cast<const i64*>(f.data)[at] : static_cast<const int*>(f.data)[at]; }
inline float exp2_fast(float x) { float y = std::exp2(x); return y < 1.17549435e-38f ? 0.f : y; }
inline float at_least(float x, float b) { return x != x ? x : std::max(x, b); }
inline float at_most(float x, float b) { return x != x ? x : std::min(x, b); }
inline float log1p_of_unit(float y) { return std::log1p(y); }
inline float exp_fast(float x) { return std::exp(x); }
}
