// The linear recurrence x_t = a_t x_{t-1} + b_t of one row, computed by a block whose threads lie along time.
//
// A tile is kThreads * kTokens tokens, of which each thread has kTokens neighbours in registers. A token is the map x -> a x +
// b; composing maps is associative. Each thread composes its own, each warp scans those by shuffles, the warps' maps go through
// shared memory, and then every thread applies its maps to the state before it. The state after the tile is carried to the
// next. The order of operations depends on nothing but kThreads and kTokens, so results are the same in every run.
//
// Numbers: float, double, and ComplexNumber of either. Products of many decays near one need double: in fp32 a decay of
// 1 - 1e-7 is off by a fifth of its distance from one, and a phase by 4e-8 rad a step, which add up over 65536 tokens. In
// double the rounding errors of a whole row stay below 1e-11.
//
// Reverse time, as gradients need it: dx_t = g_t + conj(a_{t+1}) dx_{t+1} is this recurrence if the caller numbers tokens from
// the end, with conj(a_{t+1}) as the decay of token t.
//
// Tokens past the end of a row are RowMap::identity(). A map with a = 0 is a reset of a finite state.
#pragma once

#include <gdn_cuda/kernels/common/complex.cuh>

namespace gdn_cuda::scan {

// ---- Numbers

template <class Real>
__device__ __forceinline__ Real fused(const Real& a, const Real& x, const Real& b) {
    return fma(a, x, b);
}
template <class Real>
__device__ __forceinline__ ComplexNumber<Real> fused(const ComplexNumber<Real>& a, const ComplexNumber<Real>& x,
                                                     const ComplexNumber<Real>& b) {
    return b.plus(a, x);
}
template <class Real>
__device__ __forceinline__ Real shuffled_up(const Real& x, int lanes) {
    return __shfl_up_sync(0xffffffffu, x, lanes);
}
template <class Real>
__device__ __forceinline__ ComplexNumber<Real> shuffled_up(const ComplexNumber<Real>& x, int lanes) {
    return {shuffled_up(x.re, lanes), shuffled_up(x.im, lanes)};
}

// x -> a x + b
template <class Number>
struct RowMap {
    Number a, b;

    __device__ __forceinline__ static RowMap identity() {
        return {{1}, {0}};  // a complex number's imaginary part is 0
    }
    __device__ __forceinline__ Number operator()(const Number& x) const { return fused(a, x, b); }
    // This map, then `next`.
    __device__ __forceinline__ RowMap then(const RowMap& next) const { return {next.a * a, next(b)}; }
};

// ---- The scan

template <class Number, int kWarps>
struct RowScanSharedPlan {
    RowMap<Number> of_warp[2][kWarps];  // by turns, so that one barrier a tile is enough
};

// One object per thread. All threads of the block call the same functions in the same order.
template <class Number, int kThreads, int kTokens>
struct RowScan {
    static constexpr int kWarps = kThreads / 32, kTile = kThreads * kTokens;
    static_assert(kThreads % 32 == 0);
    using Map = RowMap<Number>;
    using Plan = RowScanSharedPlan<Number, kWarps>;

    Plan& shared;
    Number state;  // before the next tile; the same in every thread
    int buffer = 0;

    // The first of this thread's tokens in a tile; the others follow it.
    __device__ __forceinline__ static int first_token() { return static_cast<int>(threadIdx.x) * kTokens; }

    // Takes a tile: replaces b by the states after its tokens. Returns the state before this thread's first token.
    __device__ __forceinline__ Number advance(const Number (&a)[kTokens], Number (&b)[kTokens]) {
        const Map before = scan_warp(composed(a, b));
        __syncthreads();
        const int warp = static_cast<int>(threadIdx.x) / 32;
        Number start = state;
#pragma unroll
        for (int i = 0; i < kWarps; ++i) {
            if (i == warp) start = state;
            state = shared.of_warp[buffer][i](state);
        }
        buffer ^= 1;
        if (threadIdx.x % 32 != 0) start = before(start);
        Number x = start;
#pragma unroll
        for (int i = 0; i < kTokens; ++i) b[i] = x = Map{a[i], b[i]}(x);
        return start;
    }
    // Composes a tile behind `whole`, the map of all tiles so far, which is the same in every thread. For rows that several
    // blocks share: first the map of each block's part, then `advance` from the state before it.
    __device__ __forceinline__ void compose(const Number (&a)[kTokens], const Number (&b)[kTokens], Map& whole) {
        scan_warp(composed(a, b));
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kWarps; ++i) whole = whole.then(shared.of_warp[buffer][i]);
        buffer ^= 1;
    }

  private:
    __device__ __forceinline__ static Map composed(const Number (&a)[kTokens], const Number (&b)[kTokens]) {
        Map map{a[0], b[0]};
#pragma unroll
        for (int i = 1; i < kTokens; ++i) map = map.then({a[i], b[i]});
        return map;
    }
    // Writes the warp's map to shared memory; returns the map of all lanes before this one, which means nothing in lane 0.
    __device__ __forceinline__ Map scan_warp(Map map) {
        const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
        for (int lanes = 1; lanes < 32; lanes *= 2) {
            const Map before{shuffled_up(map.a, lanes), shuffled_up(map.b, lanes)};
            if (lane >= lanes) map = before.then(map);
        }
        if (lane == 31) shared.of_warp[buffer][threadIdx.x / 32] = map;
        return {shuffled_up(map.a, 1), shuffled_up(map.b, 1)};
    }
};

}  // namespace gdn_cuda::scan
