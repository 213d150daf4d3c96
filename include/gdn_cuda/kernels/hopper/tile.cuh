// The tile that TMA, wgmma and stmatrix share: 64 rows of 64 16-bit elements, 128-byte swizzled (common/shared.cuh).
//
// As an operand of a product it is K-major (rows are the product's rows or columns) or MN-major (rows are along k). Operands
// advance by whole k-steps of 16 elements.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda {

constexpr int kTileElements = 64;  // in a row of 128 bytes

struct alignas(1024) SwizzledTile {
    unsigned char bytes[64 * kTileElements * 2];
};

}  // namespace gdn_cuda

#ifdef __CUDACC__

#include <gdn_cuda/kernels/common/wgmma.cuh>

namespace gdn_cuda {

constexpr int kKMajorStep = 32, kMnMajorStep = 16 * 128;  // bytes from one k-step to the next

// The same in descriptor units. K-major operands may span tiles, which are contiguous.
__device__ __forceinline__ constexpr int k_major_step(int step) {
    return (step / 4 * static_cast<int>(sizeof(SwizzledTile)) + step % 4 * kKMajorStep) / kDescriptorUnit;
}
__device__ __forceinline__ constexpr int mn_major_step(int step) {
    return step * kMnMajorStep / kDescriptorUnit;
}

}  // namespace gdn_cuda

#endif
