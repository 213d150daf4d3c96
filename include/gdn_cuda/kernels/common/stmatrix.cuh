// stmatrix (sm_90) through CUTLASS, by shared-window addresses: four 8 x 8 matrices of 16-bit elements; lane 8 i + r gives the
// address of row r of matrix i.
#pragma once

#include <gdn_cuda/kernels/common/cutlass_sm90.cuh>
#include <gdn_cuda/kernels/common/matrix.cuh>

namespace gdn_cuda {

__device__ __forceinline__ void stmatrix_x4(unsigned row, unsigned a, unsigned b, unsigned c, unsigned d) {
    cute::SM90_U32x4_STSM_N::copy(a, b, c, d, shared_row(row));
}
// Each matrix transposed.
__device__ __forceinline__ void stmatrix_x4_trans(unsigned row, unsigned a, unsigned b, unsigned c, unsigned d) {
    cute::SM90_U16x8_STSM_T::copy(a, b, c, d, shared_row(row));
}

}  // namespace gdn_cuda
