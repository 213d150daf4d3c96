// wgmma (sm_90a) through CUTLASS: bf16 or fp16 operands, fp32 accumulators. Fragments are as with mma.sync: warp w
// holds rows 16 w ... of a 64 x N accumulator, its lane (g = lane / 4, t = lane % 4) rows g and g + 8, columns 8 n + 2 t and +
// 1, in the order [n][row][column]. A pair of adjacent elements, rounded, is a register of the next product's left operand.
#pragma once

#include <gdn_cuda/kernels/common/cutlass_sm90.cuh>
#include <gdn_cuda/kernels/common/shared.cuh>

namespace gdn_cuda {

// Shared-memory operands: tiles of swizzled 128-byte rows (shared.cuh). A register holds the descriptor's low half: address and
// stride between 64-element columns, in units of 16 bytes. Advancing adds to the register and never carries. Written by hand:
// cute::GmmaDescriptor's 16-bit fields cost byte permutes, 30 instructions in gdn/prefill, and a whole descriptor 64-bit adds.
constexpr int kSwizzledRowsStride = 1024, kDescriptorUnit = 16;
struct TileOperand {
    unsigned low;

    __device__ __forceinline__ TileOperand operator+(int units) const { return {low + units}; }
    __device__ __forceinline__ cute::GmmaDescriptor descriptor() const {
        cute::GmmaDescriptor whole;
        whole.bitfield.stride_byte_offset_ = kSwizzledRowsStride / kDescriptorUnit;
        whole.bitfield.layout_type_ = static_cast<unsigned char>(cute::SM90::GMMA::LayoutType::B128);
        whole.reg32_[0] = low;
        return whole;
    }
};
__device__ __forceinline__ TileOperand tile_operand(const void* shared, int column_stride) {
    return {(shared_address(shared) & 0x3ffff) / kDescriptorUnit | (column_stride / kDescriptorUnit) << 16};
}

// Keeps the compiler from caching or moving an accumulator across a wait.
template <int kCount>
__device__ __forceinline__ void warpgroup_fence_operand(float (&accumulator)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) cute::warpgroup_fence_operand(accumulator[i]);
}

namespace gmma = cute::SM90::GMMA;

// CUTLASS's instructions by element type, N and major-ness of b; a from registers (RS) or shared memory (SS, or SSTransposed
// where a is MN-major).
template <DType kType, int kN, gmma::Major kMajor>
struct Wgmma;
#define GDN_WGMMA(type, n, inputs)                                                            \
    template <gmma::Major kMajor>                                                             \
    struct Wgmma<DType::type, n, kMajor> {                                                    \
        using RS = gmma::MMA_64x##n##x16_F32##inputs##_RS<gmma::Major::K, kMajor>;            \
        using SS = gmma::MMA_64x##n##x16_F32##inputs##_SS<gmma::Major::K, kMajor>;            \
        using SSTransposed = gmma::MMA_64x##n##x16_F32##inputs##_SS<gmma::Major::MN, kMajor>; \
    }
GDN_WGMMA(bf16, 64, BF16BF16);
GDN_WGMMA(bf16, 96, BF16BF16);
GDN_WGMMA(bf16, 128, BF16BF16);
GDN_WGMMA(bf16, 192, BF16BF16);
GDN_WGMMA(bf16, 256, BF16BF16);
GDN_WGMMA(f16, 64, F16F16);
GDN_WGMMA(f16, 96, F16F16);
GDN_WGMMA(f16, 128, F16F16);
GDN_WGMMA(f16, 192, F16F16);
GDN_WGMMA(f16, 256, F16F16);
#undef GDN_WGMMA

// d (64 x kN) = or += a (64 x 16) b (16 x kN). kAlongK: b is K-major (N x K in memory), else MN-major.
template <DType kType, int kN, bool kAlongK>
struct Product {
    using Accumulator = float[kN / 2];
    using Instruction = Wgmma<kType, kN, kAlongK ? gmma::Major::K : gmma::Major::MN>;

    __device__ __forceinline__ static void run(Accumulator& d, const unsigned (&a)[4], const TileOperand& b, bool add) {
        run<typename Instruction::RS>(d, add, a[0], a[1], a[2], a[3], b.descriptor());
    }
    __device__ __forceinline__ static void run(Accumulator& d, const TileOperand& a, const TileOperand& b, bool add) {
        run<typename Instruction::SS>(d, add, a.descriptor(), b.descriptor());
    }
    // d = or += a^T b, a (16 x 64) with rows along k.
    __device__ __forceinline__ static void run_transposed(Accumulator& d, const TileOperand& a, const TileOperand& b,
                                                          bool add) {
        run<typename Instruction::SSTransposed>(d, add, a.descriptor(), b.descriptor());
    }

  private:
    // CUTLASS takes every accumulator register as a separate argument.
    template <class Mma, class... Inputs>
    __device__ __forceinline__ static void run(Accumulator& d, bool add, const Inputs&... inputs) {
        fma<Mma>(cute::make_index_sequence<kN / 2>(), d, add ? gmma::ScaleOut::One : gmma::ScaleOut::Zero, inputs...);
    }
    template <class Mma, size_t... kIndex, class... Inputs>
    __device__ __forceinline__ static void fma(cute::index_sequence<kIndex...>, Accumulator& d, gmma::ScaleOut scale,
                                               const Inputs&... inputs) {
        Mma::fma(inputs..., d[kIndex]..., scale);
    }
};

}  // namespace gdn_cuda
