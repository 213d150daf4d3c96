#pragma once
#include <cmath>
#include <cstring>
#include <cstdint>
#include <cstdlib>
#include <algorithm>
#include <immintrin.h>
#define __device__
#define __forceinline__ inline
#define __global__
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__
#define __align__(n)
struct Dim { int x, y, z; };
extern thread_local Dim threadIdx; extern Dim blockIdx;
void __syncthreads(); void __syncwarp(); float __shfl_xor_sync(unsigned, float, int);
struct uint4 { unsigned x,y,z,w; }; struct uint2 { unsigned x,y; };
struct __nv_bfloat16 { unsigned short b; }; struct __half { unsigned short b; };
inline float __bfloat162float(__nv_bfloat16 x){ unsigned u=unsigned(x.b)<<16; float f; std::memcpy(&f,&u,4); return f; }
inline __nv_bfloat16 __float2bfloat16(float f){ unsigned u; std::memcpy(&u,&f,4); if(f!=f) return {0x7fff}; u+=0x7fff+((u>>16)&1); return {(unsigned short)(u>>16)}; }
inline float __half2float(__half x){ return _cvtsh_ss(x.b); }
inline __half __float2half(float f){ return {(unsigned short)_cvtss_sh(f,0)}; }
inline __half __ushort_as_half(unsigned short x){ return {x}; }
inline float __int_as_float(int x){ float f; std::memcpy(&f,&x,4); return f; }
inline int __float_as_int(float x){ int f; std::memcpy(&f,&x,4); return f; }
inline float __uint_as_float(unsigned x){ float f; std::memcpy(&f,&x,4); return f; }
inline unsigned __float_as_uint(float x){ unsigned f; std::memcpy(&f,&x,4); return f; }
inline float __fdividef(float a,float b){ return a/b; }
inline int __clz(int x){ return x? __builtin_clz((unsigned)x):32; }
inline void sincospif(float x,float*s,float*c){ *s=std::sin(M_PI*x); *c=std::cos(M_PI*x); }
inline void sincospi(double x,double*s,double*c){ *s=std::sin(M_PI*x); *c=std::cos(M_PI*x); }
using std::min; using std::max;
