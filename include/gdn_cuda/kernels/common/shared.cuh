// Shared-memory accesses by address, and swizzled tiles of 128-byte rows: 16-byte vector p of row r is at p ^ (r % 8).
// Written by hand: cute::Swizzle<3, 4, 3> costs 0.04 s of compile time and gives gdn/prefill and prefill_mma different code of
// the same length.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda {

__device__ __forceinline__ unsigned shared_address(const void* shared) {
    return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}

// No "memory" clobber: the compiler may move this thread's loads across it, so only other threads or tensor cores may read the
// data before a barrier.
__device__ __forceinline__ void store_shared(unsigned address, unsigned x) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(x));
}
__device__ __forceinline__ void store_shared(unsigned address, const uint4& x) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}
__device__ __forceinline__ unsigned load_shared_word(unsigned address) {
    unsigned x;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
    return x;
}
__device__ __forceinline__ uint4 load_shared(unsigned address) {
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(address)
                 : "memory");
    return x;
}

// Address of a row of a swizzled tile, and of one of its 16-byte vectors. Tiles are 128-byte aligned (1024 for TMA and wgmma),
// so the swizzle is an XOR of address bits.
__device__ __forceinline__ unsigned tile_row(const void* tile, int row) {
    return shared_address(tile) + row * 128 + ((row & 7) << 4);
}
__device__ __forceinline__ unsigned row_vector(unsigned row, int vector) {
    return row ^ (vector << 4);
}

}  // namespace gdn_cuda
