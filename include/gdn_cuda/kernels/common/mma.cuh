// Warp MMAs of 16-bit elements with fp32 accumulators (mma.sync, sm_80), and how ldmatrix (matrix.cuh) loads their fragments.
//
// With (g, t) = (lane / 4, lane % 4), register i of a lane holds
//     left operand, 16 x 16       row g + 8 (i % 2), columns 8 (i / 2) + 2 t and + 1          unsigned[4]
//     right operand, 16 x 8       rows 8 i + 2 t and + 1, column g                            unsigned[2]
//     accumulator, 16 x 8         row g + 8 (i / 2), column 2 t + i % 2                       float[4]
// Two adjacent accumulators, packed in order, are therefore a left operand (`as_left`).
//
// One ldmatrix loads a left operand, or two adjacent right operands (columns 0..7 and 8..15), from a tile of 16-byte vectors
// (eight elements). Each lane addresses one vector, depending on the operand's layout in memory (m, n: its outer dimension; k:
// the summed one):
//     left, rows of k (m x k)         ldmatrix_x4        VectorOfLane::straight, row m, vector along k
//     left, rows of m (k x m)         ldmatrix_x4_trans  VectorOfLane::crossed,  row k, vector along m
//     right, rows of k (n x k)        ldmatrix_x4        VectorOfLane::crossed,  row n, vector along k
//     right, rows of n (k x n)        ldmatrix_x4_trans  VectorOfLane::straight, row k, vector along n
#pragma once

#include <gdn_cuda/kernels/common/matrix.cuh>

namespace gdn_cuda {

// Row (0..15) and 16-byte vector (0, 1) of a 16 x 16 matrix that a lane addresses.
struct VectorOfLane {
    int row, vector;

    static __device__ __forceinline__ VectorOfLane straight(int lane) { return {lane % 16, lane / 16}; }
    static __device__ __forceinline__ VectorOfLane crossed(int lane) { return {lane / 16 * 8 + lane % 8, lane / 8 % 2}; }
};

// Transposes an 8 x 8 matrix of which a lane holds elements (g, 2 t) and (g, 2 t + 1).
__device__ __forceinline__ unsigned transposed(unsigned x) {
    unsigned result;
    cute::SM75_U32x1_MOVM_T::copy(x, result);
    return result;
}

// sums += a b
template <DType kType>
__device__ __forceinline__ void mma_m16n8k16(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    static_assert(kType == DType::bf16 || kType == DType::f16);
    using Mma =
        cute::conditional_t<kType == DType::bf16, cute::SM80_16x8x16_F32BF16BF16F32_TN, cute::SM80_16x8x16_F32F16F16F32_TN>;
    Mma::fma(sums[0], sums[1], sums[2], sums[3], a[0], a[1], a[2], a[3], b0, b1, sums[0], sums[1], sums[2], sums[3]);
}

// sums = a b + start, of int8 and int32: m16n8k32. With 4 columns of the left operand, or rows of the right one, in a register,
// register i of a lane holds
//     left operand, 16 x 32       row g + 8 (i % 2), columns 16 (i / 2) + 4 t up to + 3
//     right operand, 32 x 8       rows 16 i + 4 t up to + 3, column g
__device__ __forceinline__ void mma_m16n8k32_s8(unsigned (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1,
                                                const unsigned (&start)[4]) {
    cute::SM80_16x8x32_S32S8S8S32_TN::fma(sums[0], sums[1], sums[2], sums[3], a[0], a[1], a[2], a[3], b0, b1, start[0],
                                          start[1], start[2], start[3]);
}

// A 16 x 16 accumulator, rounded, as a left operand.
template <DType kType>
__device__ __forceinline__ void as_left(unsigned (&a)[4], const float (&left_half)[4], const float (&right_half)[4]) {
    a[0] = pack<kType>(left_half[0], left_half[1]);
    a[1] = pack<kType>(left_half[2], left_half[3]);
    a[2] = pack<kType>(right_half[0], right_half[1]);
    a[3] = pack<kType>(right_half[2], right_half[3]);
}

}  // namespace gdn_cuda
