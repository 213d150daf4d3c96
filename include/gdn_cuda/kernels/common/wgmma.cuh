// wgmma (sm_90a): products of a warpgroup, bf16 or fp16 in, fp32 out. The accumulator of a 64 x N product lies as with
// mma.sync: warp w has rows 16 w ..., thread (g = lane / 4, t = lane % 4) of it rows g and g + 8, columns 8 n + 2 t and + 1, in
// the order [n][row][column]. Two such pairs, rounded, are a register of the left operand for the next product.
#pragma once

#include <gdn_cuda/kernels/common/mbarrier.cuh>

namespace gdn_cuda {

// Right operands, and left ones from shared memory, are tiles of 128-byte rows, swizzled as tma.cuh has them: (address, stride
// between 64-element columns, stride between groups of 8 rows) in units of 16 bytes, and the swizzle. Bytes further on, it is
// the same plus their sixteenth; in 32 bits, for the sum never leaves them.
constexpr int kSwizzledRowsStride = 1024, kDescriptorUnit = 16;
struct TileOperand {
    unsigned low;

    __device__ __forceinline__ TileOperand operator+(int units) const { return {low + units}; }
    __device__ __forceinline__ unsigned long long descriptor() const {
        constexpr unsigned kHigh = kSwizzledRowsStride / kDescriptorUnit | 1u << 30;
        return static_cast<unsigned long long>(kHigh) << 32 | low;
    }
};
__device__ __forceinline__ TileOperand tile_operand(const void* shared, int column_stride) {
    return {(shared_address(shared) & 0x3ffff) / kDescriptorUnit | (column_stride / kDescriptorUnit) << 16};
}

__device__ __forceinline__ void products_begin() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void products_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// The compiler must not keep or move an accumulator across a wait.
template <int kCount>
__device__ __forceinline__ void pin(float (&x)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(x[i])::"memory");
}

// The accumulator's registers as instruction text and as operands, sixteen at a time; inputs are numbered after them.
#define GDN_NUMBERS_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define GDN_NUMBERS_32 GDN_NUMBERS_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define GDN_NUMBERS_48 GDN_NUMBERS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define GDN_NUMBERS_64 GDN_NUMBERS_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define GDN_FOUR(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define GDN_SIXTEEN(i) GDN_FOUR(i), GDN_FOUR(i + 4), GDN_FOUR(i + 8), GDN_FOUR(i + 12)
#define GDN_OPERANDS_16 GDN_SIXTEEN(0)
#define GDN_OPERANDS_32 GDN_OPERANDS_16, GDN_SIXTEEN(16)
#define GDN_OPERANDS_48 GDN_OPERANDS_32, GDN_SIXTEEN(32)
#define GDN_OPERANDS_64 GDN_OPERANDS_48, GDN_SIXTEEN(48)

// d (64 x n) = or += a (64 x 16) b (16 x n): `a` names the input registers or descriptor, further inputs follow by number.
#define GDN_WGMMA(type, n, count, a, b_number, add_number, trans, ...)                                                  \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #add_number ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n      \
                 "k16.f32." type "." type " {" GDN_NUMBERS_##count "}, " a ", %" #b_number ", add, 1, 1, " trans ";\n}" \
                 : GDN_OPERANDS_##count                                                                                 \
                 : __VA_ARGS__, "l"(b.descriptor()), "r"(static_cast<int>(add)), "n"(kAlongK ? 0 : 1))

// kAlongK: rows of b's tile run along k (b is N x K in memory), else along n.
template <DType kType, int kN, bool kAlongK>
struct Product {
    using Accumulator = float[kN / 2];

    __device__ __forceinline__ static void run(Accumulator& d, const unsigned (&a)[4], const TileOperand& b, bool add) {
#define GDN_RUN(type)                                                                                               \
    if constexpr (kN == 64)                                                                                         \
        GDN_WGMMA(type, 64, 32, "{%32, %33, %34, %35}", 36, 37, "%38", "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])); \
    else if constexpr (kN == 96)                                                                                    \
        GDN_WGMMA(type, 96, 48, "{%48, %49, %50, %51}", 52, 53, "%54", "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])); \
    else                                                                                                            \
        GDN_WGMMA(type, 128, 64, "{%64, %65, %66, %67}", 68, 69, "%70", "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]))
        static_assert(kN == 64 || kN == 96 || kN == 128);
        if constexpr (kType == DType::bf16) {
            GDN_RUN("bf16");
        } else {
            GDN_RUN("f16");
        }
#undef GDN_RUN
    }
    __device__ __forceinline__ static void run(Accumulator& d, const TileOperand& a, const TileOperand& b, bool add) {
        static_assert(kN == 64);
        if constexpr (kType == DType::bf16) {
            GDN_WGMMA("bf16", 64, 32, "%32", 33, 34, "0, %35", "l"(a.descriptor()));
        } else {
            GDN_WGMMA("f16", 64, 32, "%32", 33, 34, "0, %35", "l"(a.descriptor()));
        }
    }
};

#undef GDN_WGMMA

}  // namespace gdn_cuda
