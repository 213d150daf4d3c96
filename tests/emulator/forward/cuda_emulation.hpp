#pragma once
#include <ucontext.h>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>
#include <functional>
#include <stdexcept>
#include <algorithm>
#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)
struct alignas(16) float4 { float x, y, z, w; }; struct alignas(8) float2 { float x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct uint2 { unsigned x, y; };
struct uint3_ { unsigned x, y, z; };
namespace emu {
struct Fiber { ucontext_t context; char* stack; bool done; uint3_ thread; float slot[2]; int parity; const char* at; };
inline std::vector<Fiber> fibers; inline int current; inline ucontext_t scheduler; inline uint3_ block, grid;
inline std::vector<long> block_generation; inline long block_arrived, block_gen; inline int alive;
inline std::vector<long> warp_arrived, warp_gen;
inline std::function<void()> body;
inline void yield() { swapcontext(&fibers[current].context, &scheduler); }
inline void sync_block() { long g = block_gen; if (++block_arrived == (long)fibers.size()) { block_arrived = 0; ++block_gen; } else while (block_gen == g) yield(); }
inline void sync_warp() { int w = current / 32; long g = warp_gen[w]; if (++warp_arrived[w] == 32) { warp_arrived[w] = 0; ++warp_gen[w]; } else while (warp_gen[w] == g) yield(); }
inline void entry() { body(); fibers[current].done = true; --alive; yield(); }
inline void run_block(int threads) {
    static std::vector<char*> stacks;
    fibers.assign(threads, {}); block_arrived = block_gen = 0; alive = threads; warp_arrived.assign(threads / 32, 0); warp_gen.assign(threads / 32, 0);
    for (int i = 0; i < threads; ++i) {
        if ((int)stacks.size() <= i) stacks.push_back(new char[1 << 18]);
        Fiber& f = fibers[i]; f.thread = {(unsigned)i, 0, 0};
        getcontext(&f.context); f.context.uc_stack.ss_sp = stacks[i]; f.context.uc_stack.ss_size = 1 << 18; f.context.uc_link = nullptr;
        makecontext(&f.context, entry, 0);
    }
    // A random order of threads each round.
    static unsigned seed = 1;
    long idle = 0;
    while (alive > 0) {
        int before = alive; long g = block_gen, ws = 0; for (long x : warp_gen) ws += x;
        seed = seed * 1664525u + 1013904223u; int offset = seed >> 8, step = 1 + 2 * (seed >> 28);
        for (int k = 0; k < threads; ++k) { current = (unsigned)(offset + k * step) % threads; if (!fibers[current].done) swapcontext(&scheduler, &fibers[current].context); }
        long ws2 = 0; for (long x : warp_gen) ws2 += x;
        if (alive == before && g == block_gen && ws == ws2) { if (++idle > 3) throw std::runtime_error("deadlock"); } else idle = 0;
    }
}
}
#define threadIdx (emu::fibers[emu::current].thread)
#define blockIdx (emu::block)
#define gridDim (emu::grid)
inline void __syncthreads() { emu::sync_block(); }
inline void __syncwarp() { emu::sync_warp(); }
inline float __shfl_xor_sync(unsigned, float x, int m) {
    auto& me = emu::fibers[emu::current]; int p = me.parity ^= 1; me.slot[p] = x; int c = emu::current; emu::sync_warp();
    return emu::fibers[c ^ m].slot[p];
}
inline bool __any_sync(unsigned, bool x) { float y = x; for (int m = 1; m < 32; m *= 2) y += __shfl_xor_sync(~0u, y, m); return y > 0; }
inline float __fdividef(float a, float b) { return std::fabs(b) > 8.5e37f && std::isfinite(b) ? 0.f : a / b; }
inline float __uint_as_float(unsigned x) { float y; memcpy(&y, &x, 4); return y; }
inline unsigned __float_as_uint(float x) { unsigned y; memcpy(&y, &x, 4); return y; }
inline float __int_as_float(int x) { return __uint_as_float(x); }
struct __nv_bfloat16 { unsigned short bits; };
struct __half { unsigned short bits; };
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }
inline unsigned short __half_as_ushort(__half x) { return x.bits; }
inline __half __ushort_as_half(unsigned short x) { return {x}; }
inline __nv_bfloat16 __float2bfloat16(float x) { unsigned u = __float_as_uint(x); if (x != x) return {0x7fff}; u += 0x7fff + ((u >> 16) & 1); return {(unsigned short)(u >> 16)}; }
inline float __bfloat162float(__nv_bfloat16 x) { return __uint_as_float((unsigned)x.bits << 16); }
inline __half __float2half(float x) { _Float16 h = (_Float16)x; __half y; memcpy(&y, &h, 2); return y; }
inline float __half2float(__half x) { _Float16 h; memcpy(&h, &x, 2); return (float)h; }
inline void sincospif(float x, float* s, float* c) { *s = std::sin(M_PI * x); *c = std::cos(M_PI * x); }
inline void sincospi(double x, double* s, double* c) { *s = std::sin(M_PI * x); *c = std::cos(M_PI * x); }
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline long long min(long long a, long long b) { return a < b ? a : b; }
inline long long max(long long a, long long b) { return a > b ? a : b; }
struct __nv_bfloat162 { __nv_bfloat16 x, y; };
struct __half2 { __half x, y; };
inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return {__float2bfloat16(a), __float2bfloat16(b)}; }
inline __half2 __floats2half2_rn(float a, float b) { return {__float2half(a), __float2half(b)}; }
