// What the chunked form by warp MMAs needs of a lane beyond chunked/mma_lane.cuh (tokens.cuh, rows.cuh).
#pragma once

#include <gdn_cuda/kernels/common/named_barrier.cuh>
#include <gdn_cuda/kernels/gdn/chunked_mma/plan.cuh>
#include <gdn_cuda/kernels/gdn/recurrent/tokens.cuh>

namespace gdn_cuda::gdn {

struct MmaPartsLane : MmaLane {
    // Recomputes the indices at the start of a phase where registers are short: if the compiler hoisted addresses out of the
    // loop, dozens would spill. It does not, as it cannot know that `first_thread`, in shared memory, stays 0.
    template <int kHeadK>
    __device__ __forceinline__ void refresh(const volatile int& first_thread) {
        if (kHeadK >= 128) find_lane(threadIdx.x + first_thread);
        if (kHeadK > 192) find_warp();
    }

    // Stores both parts of the elements in row g + 8 half and columns 8 vector + 2 t and + 1 of a block.
    template <DType kIo>
    __device__ __forceinline__ void store_parts(TwoPartBlock& block, int vector, int half, float x, float y) const {
        const int at = (g + 8 * half) * 32 + ((vector ^ g / 4) << 4) + 4 * t;
        const unsigned rounded = pack<kIo>(x, y);
        *reinterpret_cast<unsigned*>(block.parts[0] + at) = rounded;
        *reinterpret_cast<unsigned*>(block.parts[1] + at) = pack_residual<kIo>(x, y, rounded);
    }
    // Loads one part of a block as two right operands: as it is, or transposed, so that rows of the block are their columns.
    __device__ __forceinline__ void load_part_as_is(unsigned (&right)[4], const unsigned char* part) const {
        ldmatrix_x4_trans(right, shared_address(part) + block_vector(VectorOfLane::straight(lane)));
    }
    __device__ __forceinline__ void load_part(unsigned (&right)[4], const unsigned char* part) const {
        ldmatrix_x4(right, shared_address(part) + block_vector(VectorOfLane::crossed(lane)));
    }
};

__device__ __forceinline__ TwoPartBlock& as_two_parts(ChunkTriangle::Block& block) {
    return reinterpret_cast<TwoPartBlock&>(block);
}

}  // namespace gdn_cuda::gdn
