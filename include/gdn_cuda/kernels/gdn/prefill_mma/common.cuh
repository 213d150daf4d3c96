// Lane indices and operand addresses for both parts of gdn/prefill_mma (tokens.cuh, state.cuh).
#pragma once

#include <gdn_cuda/kernels/common/cp_async.cuh>
#include <gdn_cuda/kernels/common/mma.cuh>
#include <gdn_cuda/kernels/common/named_barrier.cuh>
#include <gdn_cuda/kernels/gdn/prefill_mma/plan.cuh>
#include <gdn_cuda/kernels/gdn/recurrent/tokens.cuh>

namespace gdn_cuda::gdn {

struct MmaLane {
    int thread, warp, lane, g, t;

    // Recomputes the indices at the start of a phase where registers are short: if the compiler hoisted addresses out of the
    // loop, dozens would spill. It does not, as it cannot know that `first_thread`, in shared memory, stays 0.
    template <int kHeadK>
    __device__ __forceinline__ void refresh(const volatile int& first_thread) {
        if (kHeadK >= 128) find_lane(threadIdx.x + first_thread);
        if (kHeadK > 192) find_warp();
    }
    __device__ __forceinline__ MmaLane() {
        find_lane(threadIdx.x);
        find_warp();
    }

    __device__ __forceinline__ void find_lane(int index) {
        thread = index;
        lane = thread % 32;
        g = lane / 4;
        t = lane % 4;
    }
    __device__ __forceinline__ void find_warp() {
        warp = __shfl_sync(0xffffffffu, thread / 32, 0);  // tells the compiler that it is warp-uniform
    }

    // Bytes between blocks of 16 tokens in a tile, and between tiles of 64 elements.
    static constexpr int kRowBlockBytes = kInverseBlock * 128, kTileBytes = kChunk * 128;

    // The address that this lane passes to ldmatrix (mma.cuh), in the first 16 rows and the 16 elements of k step `step`.
    __device__ __forceinline__ unsigned piece_of(const void* tiles, const VectorOfLane& place, int step) const {
        return row_vector(row_vector(tile_row(tiles, place.row), place.vector), step % 4 * 2) + step / 4 * kTileBytes;
    }
    __device__ __forceinline__ unsigned straight_piece(const void* tiles, int step) const {
        return piece_of(tiles, VectorOfLane::straight(lane), step);
    }
    __device__ __forceinline__ unsigned crossed_piece(const void* tiles, int step) const {
        return piece_of(tiles, VectorOfLane::crossed(lane), step);
    }

    // sums += left x^T, where x has the 16 elements of k step `step` of the chunk's keys or queries.
    using TokenSums = float[kChunk / 8][4];  // accumulators of 16 rows x 64 tokens
    template <DType kIo>
    __device__ __forceinline__ void add_token_products(TokenSums& sums, const unsigned (&left)[4], const void* tiles,
                                                       int step) const {
#pragma unroll
        for (int block = 0; block < kChunk / 16; ++block) {
            unsigned right[4];
            ldmatrix_x4(right, crossed_piece(tiles, step) + block * kRowBlockBytes);
            mma_m16n8k16<kIo>(sums[2 * block], left, right[0], right[1]);
            mma_m16n8k16<kIo>(sums[2 * block + 1], left, right[2], right[3]);
        }
    }

    // The factors of tokens 8 n + 2 t and + 1.
    __device__ __forceinline__ float2 pair_of(const float (&factors)[kChunk], int n) const {
        return *reinterpret_cast<const float2*>(&factors[8 * n + 2 * t]);
    }

    // Stores both parts of the elements in row g + 8 half and columns 8 piece + 2 t and + 1 of a block.
    template <DType kIo>
    __device__ __forceinline__ void store_parts(TwoPartBlock& block, int piece, int half, float x, float y) const {
        const int at = (g + 8 * half) * 32 + ((piece ^ g / 4) << 4) + 4 * t;
        const unsigned rounded = pack<kIo>(x, y);
        *reinterpret_cast<unsigned*>(block.parts[0] + at) = rounded;
        *reinterpret_cast<unsigned*>(block.parts[1] + at) = pack_residual<kIo>(x, y, rounded);
    }
    // Loads one part of a block as two right operands, transposed: rows of the block are their columns.
    __device__ __forceinline__ void load_part(unsigned (&right)[4], const unsigned char* part) const {
        const VectorOfLane place = VectorOfLane::crossed(lane);
        ldmatrix_x4(right, shared_address(part) + place.row * 32 + ((place.vector ^ place.row / 4 % 2) << 4));
    }
};

__device__ __forceinline__ TwoPartBlock& as_two_parts(ChunkTriangle::Block& block) {
    return reinterpret_cast<TwoPartBlock&>(block);
}

}  // namespace gdn_cuda::gdn
