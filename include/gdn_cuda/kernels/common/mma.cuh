// A warp's products of 16-bit elements with fp32 sums (mma.sync, sm_80), and how ldmatrix (matrix.cuh) feeds them.
//
// With (g, t) = (lane / 4, lane % 4), a lane's register i holds of
//     a left operand, 16 x 16     row g + 8 (i % 2), columns 8 (i / 2) + 2 t and the next      unsigned[4]
//     a right operand, 16 x 8     rows 8 i + 2 t and the next, column g                        unsigned[2]
//     the sums, 16 x 8            row g + 8 (i / 2), column 2 t + i % 2                        float[4]
// Two neighbouring sums, packed in order, are therefore a left operand (`as_left`).
//
// One ldmatrix brings a left operand, or two neighbouring right operands (columns 0..7 and 8..15), from a tile with 16-byte
// pieces of eight elements. Each lane names one piece; which, depends on how the operand lies in memory (m, n: its rows or
// columns outside the sum; k: inside):
//     left, rows of k (m x k)         ldmatrix_x4        PieceOfLane::straight, row m, piece along k
//     left, rows of m (k x m)         ldmatrix_x4_trans  PieceOfLane::crossed,  row k, piece along m
//     right, rows of k (n x k)        ldmatrix_x4        PieceOfLane::crossed,  row n, piece along k
//     right, rows of n (k x n)        ldmatrix_x4_trans  PieceOfLane::straight, row k, piece along n
#pragma once

#include <gdn_cuda/kernels/common/matrix.cuh>

namespace gdn_cuda {

// The row (0..15) and the piece (0, 1) of a 16 x 16 matrix that a lane names.
struct PieceOfLane {
    int row, piece;

    static __device__ __forceinline__ PieceOfLane straight(int lane) { return {lane % 16, lane / 16}; }
    static __device__ __forceinline__ PieceOfLane crossed(int lane) { return {lane / 16 * 8 + lane % 8, lane / 8 % 2}; }
};

// An 8 x 8 matrix that lies over a warp, (g, 2 t) and (g, 2 t + 1) a lane, transposed. CUTLASS's is beside its ldmatrix.
__device__ __forceinline__ unsigned transposed(unsigned x) {
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(x));
    return x;
}

// sums += a b
template <DType kType>
__device__ __forceinline__ void mma_m16n8k16(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    static_assert(kType == DType::bf16 || kType == DType::f16);
    if constexpr (kType == DType::bf16) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
            "%3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    } else {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
            "%3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
}

// 16 x 16 sums, rounded, as a left operand.
template <DType kType>
__device__ __forceinline__ void as_left(unsigned (&a)[4], const float (&left_half)[4], const float (&right_half)[4]) {
    a[0] = pack<kType>(left_half[0], left_half[1]);
    a[1] = pack<kType>(left_half[2], left_half[3]);
    a[2] = pack<kType>(right_half[0], right_half[1]);
    a[3] = pack<kType>(right_half[2], right_half[3]);
}

// A factor of products in tf32 that shall be nearly as good as fp32: what tf32 has room for, and the rest, of which the tensor
// cores take as much again. Three products of such parts (all but rest times rest) lose some 2^-20.
struct TwoParts {
    unsigned high, rest;

    static __device__ __forceinline__ TwoParts of(float x) {
        const unsigned high = __float_as_uint(x) & 0xffffe000u;
        return {high, __float_as_uint(x - __uint_as_float(high))};
    }
    // For four instructions, not two: both parts rounded to nearest, which leaves some 2^-23 and no bias. The rest is made a
    // little larger, so that cutting it off is rounding on average: adding to its bits could make a number of NaN.
    static __device__ __forceinline__ TwoParts nearest(float x) {
        const float high = round_tf32(x);
        return {__float_as_uint(high), __float_as_uint((x - high) * 0x1.0016p+0f)};
    }
};

// sums (16 x 8) += a (16 x 8) b (8 x 8), laid out as mma_m16n8k8_tf32 has them (matrix.cuh). The small products come first.
__device__ __forceinline__ void add_product_fp32(float (&sums)[4], const TwoParts (&a)[4], TwoParts b0, TwoParts b1) {
    const unsigned high[4] = {a[0].high, a[1].high, a[2].high, a[3].high};
    const unsigned rest[4] = {a[0].rest, a[1].rest, a[2].rest, a[3].rest};
    mma_m16n8k8_tf32(sums, rest, b0.high, b1.high);
    mma_m16n8k8_tf32(sums, high, b0.rest, b1.rest);
    mma_m16n8k8_tf32(sums, high, b0.high, b1.high);
}

}  // namespace gdn_cuda
