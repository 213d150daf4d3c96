#pragma once
#include <cmath>
#include <cstring>
#include <thread>
#include <barrier>
#include <vector>
#include <memory>
#include <algorithm>
#include <atomic>
using std::min; using std::max; using std::isnan;
#define __CUDACC__ 1
#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)
struct uint4{unsigned x,y,z,w;}; struct uint2{unsigned x,y;};
struct Dim{unsigned x,y,z;};
inline thread_local Dim threadIdx, blockIdx;
struct Block { std::barrier<> all; std::vector<std::unique_ptr<std::barrier<>>> warps; std::vector<float> f; std::vector<double> d; std::vector<int> p; std::atomic<int> any[2]; Block(int n):all(n),f(n),d(n),p(n){ for(int i=0;i<n/32;i++) warps.push_back(std::make_unique<std::barrier<>>(32)); any[0]=any[1]=0;} };
inline Block* block; inline unsigned char* shared_memory; inline thread_local int parity=0;
inline void __syncthreads(){ block->all.arrive_and_wait(); }
inline int __syncthreads_or(int x){ if(x) block->any[parity]=1; block->all.arrive_and_wait(); int r=block->any[parity]; block->any[parity^1]=0; parity^=1; block->all.arrive_and_wait(); return r; }
inline std::barrier<>& W(){ return *block->warps[threadIdx.x/32]; }
template<class T> std::vector<T>& slot(); template<> inline std::vector<float>& slot<float>(){return block->f;} template<> inline std::vector<double>& slot<double>(){return block->d;}
template<class T> T exchange(T x,int from){ auto& s=slot<T>(); s[threadIdx.x]=x; W().arrive_and_wait(); T r=s[from]; W().arrive_and_wait(); return r; }
template<class T> T __shfl_up_sync(unsigned,T x,int d){ int l=threadIdx.x%32; return exchange(x, l>=d?threadIdx.x-d:threadIdx.x);}
template<class T> T __shfl_down_sync(unsigned,T x,int d){ int l=threadIdx.x%32; return exchange(x, l+d<32?threadIdx.x+d:threadIdx.x);}
template<class T> T __shfl_xor_sync(unsigned,T x,int d){ return exchange(x, (threadIdx.x&~31u)|((threadIdx.x%32)^d));}
inline unsigned __ballot_sync(unsigned,bool b){ block->p[threadIdx.x]=b; W().arrive_and_wait(); unsigned r=0; for(int i=0;i<32;i++) r|=unsigned(block->p[(threadIdx.x&~31u)+i])<<i; W().arrive_and_wait(); return r; }
inline void sincospif(float,float*,float*){} inline void sincospi(double,double*,double*){}
inline int __ffs(int x){ return __builtin_ffs(x);} 
inline float __int_as_float(int x){float f; memcpy(&f,&x,4); return f;}
