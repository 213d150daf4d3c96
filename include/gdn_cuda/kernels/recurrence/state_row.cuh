// What one token does to one row of the state, which a group of lanes holds: shared by the kernels of the recurrence.
#pragma once

#include <gdn_cuda/kernels/common/opaque.cuh>
#include <gdn_cuda/kernels/common/vector.cuh>
#include <gdn_cuda/kernels/recurrence/call.cuh>
#include <gdn_cuda/kernels/recurrence/state_layout.cuh>

namespace gdn_cuda::gdn {

// Clears the elements of `count` columns whose decays are 0, infinities and NaN included.
template <class T>
__device__ __forceinline__ void clear_where_zero(T* elements, const float* decays, int count) {
#pragma unroll 1
    for (int i = 0; i < count; ++i)
        if (decays[i] == 0.f) elements[i] = from_float<T>(0.f);
}

// One lane's slice of a row of dk elements: vectors `lane`, `lane + lanes`, ... With kExact, dk is the layout's head_k.
template <class T, StateLayout kLayout, bool kAligned, bool kExact>
struct RowSlice {
    Vector<T, kLayout.vector, kAligned> vectors[kLayout.vectors()];

    __device__ __forceinline__ static int column(int i, int lane) { return (i * kLayout.lanes + lane) * kLayout.vector; }
    __device__ __forceinline__ static bool inside(int i, int lane, int dk) { return kExact || column(i, lane) < dk; }

    __device__ __forceinline__ void load(const T* row, int lane, int dk) {
#pragma unroll
        for (int i = 0; i < kLayout.vectors(); ++i)
            inside(i, lane, dk) ? vectors[i].load(row + column(i, lane)) : vectors[i].clear();
    }
    __device__ __forceinline__ void load_streaming(const T* row, int lane, int dk) {
#pragma unroll
        for (int i = 0; i < kLayout.vectors(); ++i)
            inside(i, lane, dk) ? vectors[i].load_streaming(row + column(i, lane)) : vectors[i].clear();
    }
    // Clears columns whose decays are 0; `decays` are those of the row.
    __device__ __forceinline__ void clear_where_zero(const float* decays, int lane) {
#pragma unroll
        for (int i = 0; i < kLayout.per_lane; ++i)
            if (decays[column(i / kLayout.vector, lane) + i % kLayout.vector] == 0.f)
                vectors[i / kLayout.vector].set(i % kLayout.vector, 0.f);
    }
    __device__ __forceinline__ void clear() {
        for (auto& vector : vectors) vector.clear();
    }
    __device__ __forceinline__ void store(T* row, int lane, int dk, const float (&s)[kLayout.per_lane]) {
#pragma unroll
        for (int i = 0; i < kLayout.vectors(); ++i) {
#pragma unroll
            for (int j = 0; j < kLayout.vector; ++j) vectors[i].set(j, s[i * kLayout.vector + j]);
            if (inside(i, lane, dk)) vectors[i].store_global(row + column(i, lane));
        }
    }
    __device__ __forceinline__ void store_if(bool exists, T* row, int lane, int dk, const float (&s)[kLayout.per_lane]) {
        if (exists) store(row, lane, dk, s);
    }
    __device__ __forceinline__ float operator[](int i) const { return vectors[i / kLayout.vector][i % kLayout.vector]; }
};

// A row in fp32 registers, or with kWide = false the slice itself. The compiler would convert elements again at every use.
template <StateLayout kLayout>
struct WideRow {
    float elements[kLayout.per_lane];

    __device__ __forceinline__ explicit WideRow(const auto& slice) {
#pragma unroll
        for (int i = 0; i < kLayout.per_lane; ++i) elements[i] = opaque(slice[i]);
    }
    __device__ __forceinline__ float operator[](int i) const { return elements[i]; }
};
template <StateLayout kLayout, bool kWide, class Slice>
__device__ __forceinline__ decltype(auto) widened(const Slice& slice) {
    if constexpr (kWide)
        return WideRow<kLayout>(slice);
    else
        return (slice);
}

// Sets what a token's query and key contribute to its scalars: the l2 norms, the scale, and q.k.
template <auto kLayout, class Slice>
__device__ __forceinline__ void set_products(TokenScalars& scalars, const Slice& query, const Slice& key, float scale,
                                             bool qk_norm) {
    float key_square = 0.f, query_square = 0.f, query_key = 0.f;
#pragma unroll
    for (int i = 0; i < kLayout.per_lane; ++i) {
        key_square = fmaf(key[i], key[i], key_square);
        query_square = fmaf(query[i], query[i], query_square);
        query_key = fmaf(query[i], key[i], query_key);
    }
    scalars.key_scale = 1.f;
    scalars.query_scale = scale;
    if (qk_norm) {
        scalars.key_scale = rsqrtf(group_sum<kLayout.lanes>(key_square) + kNormEpsilon);
        scalars.query_scale *= rsqrtf(group_sum<kLayout.lanes>(query_square) + kNormEpsilon);
    }
    scalars.query_key = group_sum<kLayout.lanes>(query_key) * scalars.key_scale * scalars.query_scale;
}

// A gate whose exponential is 0 in fp32 is an exact reset: it clears the state, infinities and NaN included.
__device__ __forceinline__ bool resets(const TokenScalars& scalars) {
    return scalars.decay == 0.f;
}

// Updates one row by one token and returns the row's output; s is the lane's slice of the row. S is the state before the decay:
//     v' = beta (v - e^g S.k)        o = scale (e^g S.q + v' q.k)        S <- e^g S + v' k^T
// so S.k and S.q are summed in one round of shuffles. Where e^g is 0, the caller has cleared the row (`resets`): 0 times
// infinity is NaN.
template <auto kLayout, class Slice>
__device__ __forceinline__ float advance(float (&s)[kLayout.per_lane], const Slice& query, const Slice& key,
                                         const TokenScalars& scalars, float value) {
    float state_key = 0.f, state_query = 0.f;
#pragma unroll
    for (int i = 0; i < kLayout.per_lane; ++i) {
        state_key = fmaf(s[i], key[i], state_key);
        state_query = fmaf(s[i], query[i], state_query);
    }
    state_key = group_sum<kLayout.lanes>(state_key) * scalars.key_scale;
    state_query = group_sum<kLayout.lanes>(state_query) * scalars.query_scale;
    const float correction = scalars.beta * (value - scalars.decay * state_key);
    const float along_key = correction * scalars.key_scale;
#pragma unroll
    for (int i = 0; i < kLayout.per_lane; ++i) s[i] = fmaf(along_key, key[i], scalars.decay * s[i]);
    return fmaf(correction, scalars.query_key, scalars.decay * state_query);
}

}  // namespace gdn_cuda::gdn
