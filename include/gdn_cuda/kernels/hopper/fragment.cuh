// A warpgroup's 64 rows of a matrix as wgmma's accumulator, and its rounding to a left operand (common/wgmma.cuh): a thread
// holds rows g and g + 8 of its warp's 16, columns 8 n + 2 t and + 1, in the order [n][row][column].
#pragma once

#include <gdn_cuda/kernels/common/pairs.cuh>
#include <gdn_cuda/kernels/hopper/warpgroup.cuh>

namespace gdn_cuda {

template <int kElements>
__device__ __forceinline__ void clear_fragment(float (&fragment)[kElements]) {
#pragma unroll
    for (float& x : fragment) x = 0.f;
}
template <int kElements>
__device__ __forceinline__ void scale_fragment(float (&fragment)[kElements], float factor) {
#pragma unroll
    for (float& x : fragment) x *= factor;
}

// Waits until at most kPending later groups of products are in flight.
template <int kPending = 0, int kElements>
__device__ __forceinline__ void wait_for_product(float (&accumulator)[kElements]) {
    cute::warpgroup_wait<kPending>();
    warpgroup_fence_operand(accumulator);
}

template <DType kType, int kSteps>
__device__ __forceinline__ void round_to_operand(unsigned (&operand)[kSteps][4], const float (&fragment)[8 * kSteps]) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
#pragma unroll
        for (int i = 0; i < 4; ++i) operand[step][i] = pack<kType>(fragment[8 * step + 2 * i], fragment[8 * step + 2 * i + 1]);
}
// In two parts.
template <DType kType, int kSteps>
__device__ __forceinline__ void round_to_operand(unsigned (&operand)[kSteps][4], unsigned (&residual)[kSteps][4],
                                                 const float (&fragment)[8 * kSteps]) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float x = fragment[8 * step + 2 * i], next = fragment[8 * step + 2 * i + 1];
            operand[step][i] = pack<kType>(x, next);
            residual[step][i] = pack_residual<kType>(x, next, operand[step][i]);
        }
}

// The fragment in a row-major matrix. `place` has my_row() of this thread, rows() and columns() of the matrix (a
// multiple of 8 columns), and t. Calls visit(pair of elements, their address in `matrix`) for those in range.
template <class Place, class T, int kElements, class Visit>
__device__ __forceinline__ void for_each_pair(float (&fragment)[kElements], const Place& place, T* matrix, Visit&& visit) {
    const int columns = place.columns();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = place.my_row() + 8 * half;
        T* at = matrix + static_cast<i64>(row) * columns + 2 * place.t;
#pragma unroll
        for (int n = 0; n < kElements / 4; ++n)
            if (row < place.rows() && 8 * n < columns)
                visit(fragment[4 * n + 2 * half], fragment[4 * n + 2 * half + 1], at + 8 * n);
    }
}
template <class Place, int kElements>
__device__ __forceinline__ void set_identity(float (&fragment)[kElements], const Place& place) {
#pragma unroll
    for (int i = 0; i < kElements; ++i)
        fragment[i] = place.my_row() + i % 4 / 2 * 8 == i / 4 * 8 + 2 * place.t + i % 2 ? 1.f : 0.f;
}
template <class Place, int kElements>
__device__ __forceinline__ void load_fragment(float (&fragment)[kElements], const Place& place, const float* matrix) {
    for_each_pair(fragment, place, matrix, [](float& x, float& y, const float* at) {
        const float2 pair = pair_at(at);
        x = pair.x;
        y = pair.y;
    });
}
template <class Place, int kElements>
__device__ __forceinline__ void load_fragment(float (&fragment)[kElements], const Place& place, const __nv_bfloat16* matrix) {
    for_each_pair(fragment, place, matrix, [](float& x, float& y, const __nv_bfloat16* at) {
        const float2 pair = unpack<DType::bf16>(*reinterpret_cast<const unsigned*>(at));
        x = pair.x;
        y = pair.y;
    });
}
template <class Place, int kElements>
__device__ __forceinline__ void store_fragment(float (&fragment)[kElements], const Place& place, float* matrix) {
    for_each_pair(fragment, place, matrix, [](float& x, float& y, float* at) { *reinterpret_cast<float2*>(at) = {x, y}; });
}
template <class Place, int kElements>
__device__ __forceinline__ void store_fragment(float (&fragment)[kElements], const Place& place, __nv_bfloat16* matrix) {
    for_each_pair(fragment, place, matrix,
                  [](float& x, float& y, __nv_bfloat16* at) { *reinterpret_cast<unsigned*>(at) = pack<DType::bf16>(x, y); });
}

}  // namespace gdn_cuda
