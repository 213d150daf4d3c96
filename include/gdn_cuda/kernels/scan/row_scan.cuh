// The linear recurrence x_t = a_t x_{t-1} + b_t of one row, computed by a block whose threads are along time.
//
// A tile is kThreads * kTokens tokens, of which each thread has kTokens consecutive ones in registers. A token is the map x ->
// a x + b, and composition of maps is associative: each thread composes its tokens' maps, each warp scans these by shuffles,
// the warps' maps go through shared memory, and then every thread applies its maps to the state before its tokens. The state
// after the tile is carried to the next one. The order of operations depends on kThreads and kTokens alone, so results are the
// same bits in every run.
//
// Number is float, double, or ComplexNumber of either. Products of many decays near one need double: fp32 rounds a decay of 1 -
// 1e-7 by a fifth of its distance from one, and a phase by 4e-8 rad a step, and these errors add up over 65536 tokens. In
// double the rounding errors of a whole row stay below 1e-11.
//
// Gradients need reverse time: dx_t = g_t + conj(a_{t+1}) dx_{t+1} is this recurrence if the caller counts tokens from the end,
// with conj(a_{t+1}) as the decay of token t.
//
// The caller passes RowMap::identity() for tokens past the end of a row. A map with a = 0 resets a finite state.
#pragma once

#include <gdn_cuda/kernels/common/complex.cuh>

namespace gdn_cuda::scan {

// ---- Real and complex numbers

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
    RowMap<Number> warp_maps[2][kWarps];  // two buffers, so that one barrier a tile is enough
};

// One object per thread; all threads of the block call the same functions in the same order.
template <class Number, int kThreads, int kTokens>
struct RowScan {
    static constexpr int kWarps = kThreads / 32, kTile = kThreads * kTokens;
    static_assert(kThreads % 32 == 0);
    using Map = RowMap<Number>;
    using Plan = RowScanSharedPlan<Number, kWarps>;

    Plan& shared;
    Number state;  // before the next tile; the same in every thread
    int buffer = 0;

    // The first of this thread's consecutive tokens in a tile.
    __device__ __forceinline__ static int first_token() { return static_cast<int>(threadIdx.x) * kTokens; }

    // Advances the state by a tile: replaces b by the states after its tokens, and returns the state before this thread's first
    // token.
    __device__ __forceinline__ Number advance(const Number (&a)[kTokens], Number (&b)[kTokens]) {
        const Map before = scan_warp(composed(a, b));
        __syncthreads();
        const int warp = static_cast<int>(threadIdx.x) / 32;
        Number start = state;
#pragma unroll
        for (int i = 0; i < kWarps; ++i) {
            if (i == warp) start = state;
            state = shared.warp_maps[buffer][i](state);
        }
        buffer ^= 1;
        if (threadIdx.x % 32 != 0) start = before(start);
        Number x = start;
#pragma unroll
        for (int i = 0; i < kTokens; ++i) b[i] = x = Map{a[i], b[i]}(x);
        return start;
    }
    // Composes `whole`, the map of all tiles so far (the same in every thread), with a tile's map. For rows that several blocks
    // share: first compute the map of each block's part, then `advance` from the state before the part.
    __device__ __forceinline__ void compose(const Number (&a)[kTokens], const Number (&b)[kTokens], Map& whole) {
        scan_warp(composed(a, b));
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kWarps; ++i) whole = whole.then(shared.warp_maps[buffer][i]);
        buffer ^= 1;
    }

  private:
    __device__ __forceinline__ static Map composed(const Number (&a)[kTokens], const Number (&b)[kTokens]) {
        Map map{a[0], b[0]};
#pragma unroll
        for (int i = 1; i < kTokens; ++i) map = map.then({a[i], b[i]});
        return map;
    }
    // Writes the warp's map to shared memory; returns the composed map of the lanes before this one, which is undefined in lane
    // 0.
    __device__ __forceinline__ Map scan_warp(Map map) {
        const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
        for (int lanes = 1; lanes < 32; lanes *= 2) {
            const Map before{shuffled_up(map.a, lanes), shuffled_up(map.b, lanes)};
            if (lane >= lanes) map = before.then(map);
        }
        if (lane == 31) shared.warp_maps[buffer][threadIdx.x / 32] = map;
        return {shuffled_up(map.a, 1), shuffled_up(map.b, 1)};
    }
};

}  // namespace gdn_cuda::scan
