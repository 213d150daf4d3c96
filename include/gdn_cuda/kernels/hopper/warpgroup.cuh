// A thread's place in its block, as wgmma's fragments count it, and a barrier for each warpgroup.
#pragma once

#include <gdn_cuda/kernels/hopper/tile.cuh>

namespace gdn_cuda {

constexpr int kWarpgroup = 128;  // threads

// Named barriers: the first ones are a kernel's own; then each warpgroup has one. CUTLASS adds its reserved ones to the
// indices.
constexpr int kWarpgroupBarrier = 2;

}  // namespace gdn_cuda

#ifdef __CUDACC__

#include <gdn_cuda/kernels/common/named_barrier.cuh>
#include <gdn_cuda/kernels/common/opaque.cuh>

namespace gdn_cuda {

using cutlass::arch::NamedBarrier;

struct Lane {
    int group, thread, warp, lane, g, t;  // group in the block; thread and warp in the group; lane, g, t in the warp

    // Recomputed for every chunk: hoisted out of the loop, dozens of addresses and masks would spill.
    __device__ __forceinline__ void find_lane() {
        unsigned i = threadIdx.x;
        asm volatile("" : "+r"(i));
        const unsigned whole_warps = __shfl_sync(0xffffffffu, i / 32, 0);  // warp-uniform for the compiler
        group = static_cast<int>(whole_warps / 4);
        warp = static_cast<int>(whole_warps % 4);
        thread = static_cast<int>(i % kWarpgroup);
        lane = static_cast<int>(i % 32);
        g = static_cast<int>(i % 32 / 4);
        t = static_cast<int>(i % 4);
    }

    __device__ __forceinline__ void warpgroup_sync() const { NamedBarrier::sync(kWarpgroup, kWarpgroupBarrier + group); }
    // Whether `found` holds for any thread of the warpgroup; warp-uniform for the compiler by the shuffle.
    __device__ __forceinline__ bool any_of_warpgroup(bool found) const {
        const int index = NamedBarrier::ReservedNamedBarrierCount + kWarpgroupBarrier + group;
        return __shfl_sync(0xffffffffu, named_barrier_or(kWarpgroup, index, found), 0);
    }

    // This lane's row address for a transposing ldmatrix or stmatrix x4: the tile's first 16 rows, this warp's 16 columns.
    __device__ __forceinline__ unsigned matrix_row(const SwizzledTile& tile) const {
        const int row = lane / 16 * 8 + lane % 8, vector = 2 * warp + lane / 8 % 2;
        return shared_address(tile.bytes) + (row * 128 | (vector ^ row % 8) << 4);  // one register for every tile
    }
};

}  // namespace gdn_cuda

#endif
