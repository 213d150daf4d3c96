// CUDA C++ for g++, as far as the kernels use it: included before the source that NVRTC gets. translate.py has replaced inline
// PTX and __shared__ variables. Warp functions expect all lanes.
#pragma once

#include <limits.h>
#include <math.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "grid.hpp"
#include "ptx.hpp"

#define __host__
#define __device__
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define __forceinline__ inline
#define __align__(bytes) alignas(bytes)
#define __builtin_assume(condition) ((condition) ? void() : emulator::fail("__builtin_assume(" #condition ") does not hold"))

#define threadIdx emulator::thread_index
#define blockIdx emulator::block_index
#define gridDim emulator::grid_size
#define blockDim emulator::block_size

struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

// ---- Barriers, votes, shuffles

inline void __syncthreads() {
    emulator::sync_block("__syncthreads");
}
inline int __syncthreads_or(int vote) {
    return emulator::sync_block("__syncthreads_or", vote != 0);
}

namespace emulator {

inline void expect_all(unsigned lanes) {
    if (lanes != 0xffffffffu) fail("expected a mask of all lanes");
}
template <class T>
T value_of_lane(int lane, T x, const char* what) {
    static_assert(sizeof(T) <= 8);
    std::uint64_t word = 0;
    std::memcpy(&word, &x, sizeof x);
    word = sync_warp(what, word)[lane];
    std::memcpy(&x, &word, sizeof x);
    return x;
}

}  // namespace emulator

inline int atomicMax(int* at, int x) {
    return std::exchange(*at, std::max(*at, x));
}
inline unsigned atomicAdd(unsigned* at, unsigned x) {
    return std::exchange(*at, *at + x);
}
inline unsigned atomicOr(unsigned* at, unsigned x) {
    return std::exchange(*at, *at | x);
}

inline void __syncwarp(unsigned lanes = 0xffffffffu) {
    emulator::expect_all(lanes);
    emulator::sync_warp("__syncwarp");
}
inline unsigned __ballot_sync(unsigned lanes, bool vote) {
    emulator::expect_all(lanes);
    const emulator::Words& votes = emulator::sync_warp("__ballot_sync", vote);
    unsigned bits = 0;
    for (int lane = 0; lane < emulator::kLanes; ++lane) bits |= static_cast<unsigned>(votes[lane] & 1) << lane;
    return bits;
}
inline bool __any_sync(unsigned lanes, bool vote) {
    return __ballot_sync(lanes, vote) != 0;
}
inline bool __all_sync(unsigned lanes, bool vote) {
    return __ballot_sync(lanes, vote) == 0xffffffffu;
}
inline unsigned __reduce_or_sync(unsigned lanes, unsigned x) {
    emulator::expect_all(lanes);
    const emulator::Words& all = emulator::sync_warp("__reduce_or_sync", x);
    unsigned bits = 0;
    for (int lane = 0; lane < emulator::kLanes; ++lane) bits |= static_cast<unsigned>(all[lane]);
    return bits;
}
template <class T>
T __shfl_sync(unsigned lanes, T x, int from, int width = emulator::kLanes) {
    emulator::expect_all(lanes);
    return emulator::value_of_lane(emulator::lane() / width * width + from % width, x, "__shfl_sync");
}
template <class T>
T __shfl_xor_sync(unsigned lanes, T x, int bits) {
    emulator::expect_all(lanes);
    return emulator::value_of_lane(emulator::lane() ^ bits, x, "__shfl_xor_sync");
}
template <class T>
T __shfl_up_sync(unsigned lanes, T x, unsigned distance) {
    emulator::expect_all(lanes);
    const int from = emulator::lane() - static_cast<int>(distance);
    return emulator::value_of_lane(from < 0 ? emulator::lane() : from, x, "__shfl_up_sync");
}
template <class T>
T __shfl_down_sync(unsigned lanes, T x, unsigned distance) {
    emulator::expect_all(lanes);
    const int from = emulator::lane() + static_cast<int>(distance);
    return emulator::value_of_lane(from < emulator::kLanes ? from : emulator::lane(), x, "__shfl_down_sync");
}

// ---- Memory

inline std::size_t __cvta_generic_to_shared(const void* pointer) {
    return emulator::shared_address(pointer);
}
inline void* __cvta_shared_to_generic(std::size_t address) {
    return emulator::shared_pointer(static_cast<unsigned>(address));
}
inline bool __isGlobal(const void* pointer) {
    return !emulator::is_shared(pointer);
}

// ---- Arithmetic

inline float __uint_as_float(unsigned x) {
    return std::bit_cast<float>(x);
}
inline float __int_as_float(int x) {
    return std::bit_cast<float>(x);
}
inline unsigned __float_as_uint(float x) {
    return std::bit_cast<unsigned>(x);
}
inline int __float_as_int(float x) {
    return std::bit_cast<int>(x);
}
inline int __double2loint(double x) {
    return static_cast<int>(std::bit_cast<std::uint64_t>(x));
}
inline int __double2hiint(double x) {
    return static_cast<int>(std::bit_cast<std::uint64_t>(x) >> 32);
}
inline double __hiloint2double(int high, int low) {
    return std::bit_cast<double>(static_cast<std::uint64_t>(static_cast<unsigned>(high)) << 32 | static_cast<unsigned>(low));
}
inline int __clz(int x) {
    return std::countl_zero(static_cast<unsigned>(x));
}
inline int __clzll(long long x) {
    return std::countl_zero(static_cast<unsigned long long>(x));
}
inline int __ffs(int x) {
    return __builtin_ffs(x);
}
inline int __popc(unsigned x) {
    return std::popcount(x);
}
// The low word of (high:low) >> bits % 32.
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned bits) {
    return static_cast<unsigned>((std::uint64_t{high} << 32 | low) >> (bits % 32));
}
// A hexadecimal digit of the selector picks a byte: 0 to 3 of x, 4 to 7 of y.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    unsigned bytes = 0;
    for (int i = 0; i < 4; ++i) {
        const unsigned from = selector >> 4 * i & 0xf;
        if (from >= 8) emulator::fail("__byte_perm of a sign");
        bytes |= static_cast<unsigned>((std::uint64_t{y} << 32 | x) >> 8 * from & 0xff) << 8 * i;
    }
    return bytes;
}
// To the nearest, ties to even; NaN is 0.
inline int __float2int_rn(float x) {
    if (x != x) return 0;
    return static_cast<int>(std::clamp<double>(std::nearbyint(double{x}), INT_MIN, INT_MAX));
}
inline float __log2f(float x) {
    return log2f(emulator::without_subnormals(x));
}
// 0 for a divisor above 2^126, as on the device.
inline float rsqrtf(float x) {
    return 1.f / std::sqrt(x);
}
inline float __fdividef(float x, float y) {
    return fabsf(y) > 0x1p126f && std::isfinite(y) ? x * 0.f : x / y;
}
inline void sincospif(float x, float* sine, float* cosine) {
    *sine = static_cast<float>(sin(M_PI * fmod(x, 2)));
    *cosine = static_cast<float>(cos(M_PI * fmod(x, 2)));
}
inline void sincospi(double x, double* sine, double* cosine) {
    *sine = sin(M_PI * fmod(x, 2));
    *cosine = cos(M_PI * fmod(x, 2));
}

#define GDN_MIN_AND_MAX(T)    \
    inline T min(T x, T y) {  \
        return y < x ? y : x; \
    }                         \
    inline T max(T x, T y) {  \
        return x < y ? y : x; \
    }
GDN_MIN_AND_MAX(int)
GDN_MIN_AND_MAX(unsigned)
GDN_MIN_AND_MAX(long long)
#undef GDN_MIN_AND_MAX

// The part of cuda_fp16.h and cuda_bf16.h that kernels use; the headers need more of the CUDA toolkit than torch's wheels have.

struct __half {
    _Float16 value;
};
struct __nv_bfloat16 {
    unsigned short bits;
};
struct alignas(4) __half2 {
    __half x, y;
};
struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};
inline float __half2float(__half x) {
    return static_cast<float>(x.value);
}
inline __half __float2half(float x) {
    return {static_cast<_Float16>(x)};
}
inline __half __ushort_as_half(unsigned short bits) {
    return std::bit_cast<__half>(bits);
}
inline unsigned short __half_as_ushort(__half x) {
    return std::bit_cast<unsigned short>(x);
}
inline float __bfloat162float(__nv_bfloat16 x) {
    return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
}
inline __nv_bfloat16 __float2bfloat16(float x) {
    const unsigned bits = __float_as_uint(x);
    if (x != x) return {0x7fff};
    return {static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) {
    return x.bits;
}
inline __half2 __float2half2_rn(float x) {
    return {__float2half(x), __float2half(x)};
}
inline __half2 __hsub2(__half2 a, __half2 b) {
    return {__float2half(__half2float(a.x) - __half2float(b.x)), __float2half(__half2float(a.y) - __half2float(b.y))};
}
inline __half2 __floats2half2_rn(float x, float y) {
    return {__float2half(x), __float2half(y)};
}
inline float2 __half22float2(__half2 x) {
    return {__half2float(x.x), __half2float(x.y)};
}
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
    return {__float2bfloat16(x), __float2bfloat16(y)};
}
