// cp.async (sm_80) through CUTLASS, for kernels that use tensor cores; the others use cp_async_ptx.cuh. Waits and copies
// have no "memory" clobbers: plain accesses to the same shared memory need a __syncthreads or __syncwarp in between.
#pragma once

#include <gdn_cuda/kernels/common/cutlass_sm80.cuh>

namespace gdn_cuda {

using cute::cp_async_fence;
using cute::cp_async_wait;

// If !exists, writes zeros and does not read `global`; `shared` is a shared-window address.
__device__ __forceinline__ void cp_async_16_zfill(unsigned shared, const void* global, bool exists) {
    using Piece = cute::uint128_t;
    cute::SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<Piece>::copy(*static_cast<const Piece*>(global),
                                                       *static_cast<Piece*>(__cvta_shared_to_generic(shared)), exists);
}

}  // namespace gdn_cuda
