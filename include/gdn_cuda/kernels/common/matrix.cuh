// ldmatrix through CUTLASS.
#pragma once

#include <gdn_cuda/kernels/common/cutlass_sm80.cuh>
#include <gdn_cuda/kernels/common/pairs.cuh>
#include <gdn_cuda/kernels/common/shared.cuh>

namespace gdn_cuda {

// CUTLASS takes a matrix row by reference; ptxas folds the conversion from and to a shared-window address.
__device__ __forceinline__ cute::uint128_t& shared_row(unsigned row) {
    return *static_cast<cute::uint128_t*>(__cvta_shared_to_generic(row));
}

// Four 8 x 8 matrices; lane 8 i + r gives the address of row r of matrix i.
__device__ __forceinline__ void ldmatrix_x4(unsigned (&x)[4], unsigned row) {
    cute::SM75_U32x4_LDSM_N::copy(shared_row(row), x[0], x[1], x[2], x[3]);
}
// Each matrix transposed.
__device__ __forceinline__ void ldmatrix_x4_trans(unsigned (&x)[4], unsigned row) {
    cute::SM75_U16x8_LDSM_T::copy(shared_row(row), x[0], x[1], x[2], x[3]);
}

}  // namespace gdn_cuda
