// Shared-memory accesses by address, and swizzled tiles of 128-byte rows: 16-byte piece p of row r lies at p ^ (r % 8). By
// hand: through cute::Swizzle<3, 4, 3>, 0.04 s of compile time, gdn/prefill and prefill_mma get other code of the same length.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda {

__device__ __forceinline__ unsigned shared_address(const void* shared) {
    return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}

// No "memory" clobber: only for data read by other threads or tensor cores, as this thread's loads may be moved past it.
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

// A row of a swizzled tile, and one of its pieces. Tiles are 128-byte aligned (1024 for TMA and wgmma), so the swizzle is an
// XOR of address bits.
__device__ __forceinline__ unsigned tile_row(const void* tile, int row) {
    return shared_address(tile) + row * 128 + ((row & 7) << 4);
}
__device__ __forceinline__ unsigned row_piece(unsigned row, int piece) {
    return row ^ (piece << 4);
}

}  // namespace gdn_cuda
