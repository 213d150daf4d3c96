// Tiles of a chunk's tokens and lane indices of the chunked form by warp MMAs, for host and device: a warp has 16 rows of a
// state in registers and multiplies them by tiles in shared memory.
#pragma once

#include <gdn_cuda/kernels/chunked/chunk.cuh>

namespace gdn_cuda::gdn {

constexpr int kMmaWarpRows = 16;      // rows of the state per warp: the M of an MMA
constexpr int kMmaTileElements = 64;  // elements in a 128-byte row

// 64 tokens x 64 elements, 128-byte rows; 16-byte vector p of row r is stored at p ^ (r % 8).
struct alignas(128) MmaTile {
    unsigned char bytes[kChunk * kMmaTileElements * 2];
};

}  // namespace gdn_cuda::gdn

#ifdef __CUDACC__

#include <gdn_cuda/kernels/common/cp_async.cuh>
#include <gdn_cuda/kernels/common/mma.cuh>
#include <gdn_cuda/kernels/common/vector.cuh>

namespace gdn_cuda::gdn {

using TokenOperands = unsigned[kChunk / 16][4];  // left operands of 16 rows x 64 tokens

struct MmaLane {
    int thread, warp, lane, g, t;

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
    static constexpr int kRowBlockBytes = 16 * 128, kTileBytes = kChunk * 128;

    // The address that this lane passes to ldmatrix (mma.cuh), in the first 16 rows and the 16 elements of k step `step`.
    __device__ __forceinline__ unsigned vector_of(const void* tiles, const VectorOfLane& place, int step) const {
        return row_vector(row_vector(tile_row(tiles, place.row), place.vector), step % 4 * 2) + step / 4 * kTileBytes;
    }
    __device__ __forceinline__ unsigned straight_vector(const void* tiles, int step) const {
        return vector_of(tiles, VectorOfLane::straight(lane), step);
    }
    __device__ __forceinline__ unsigned crossed_vector(const void* tiles, int step) const {
        return vector_of(tiles, VectorOfLane::crossed(lane), step);
    }

    // Bytes from the start of a 16 x 16 block to a vector of it: a row is 32 bytes, and its 16-byte vector p is at p ^ (r / 4 %
    // 2) for row r.
    static __device__ __forceinline__ int block_vector(int row, int vector) { return row * 32 + ((vector ^ row / 4 % 2) << 4); }
    static __device__ __forceinline__ int block_vector(const VectorOfLane& place) {
        return block_vector(place.row, place.vector);
    }

    // sums += left x^T, where x has the 16 elements of k step `step` of the chunk's tokens.
    using TokenSums = float[kChunk / 8][4];  // accumulators of 16 rows x 64 tokens
    template <DType kIo>
    __device__ __forceinline__ void add_token_products(TokenSums& sums, const unsigned (&left)[4], const void* tiles,
                                                       int step) const {
#pragma unroll
        for (int block = 0; block < kChunk / 16; ++block) {
            unsigned right[4];
            ldmatrix_x4(right, crossed_vector(tiles, step) + block * kRowBlockBytes);
            mma_m16n8k16<kIo>(sums[2 * block], left, right[0], right[1]);
            mma_m16n8k16<kIo>(sums[2 * block + 1], left, right[2], right[3]);
        }
    }

    // The factors of tokens 8 n + 2 t and + 1.
    __device__ __forceinline__ float2 pair_of(const float (&factors)[kChunk], int n) const {
        return *reinterpret_cast<const float2*>(&factors[8 * n + 2 * t]);
    }

    // ---- Outputs, staged transposed in the warp's 16 columns of a tile

    // Elements 2 half and 2 half + 1 of accumulator n, packed.
    static __device__ __forceinline__ void stage_pair(unsigned first, int n, int half, unsigned pair) {
        store_shared(row_vector(first, half) + n * (kRowBlockBytes / 2), transposed(pair));
    }
    // Stores what a tile has of a chunk, at `to` for this lane's first vector, and calls `between` before it waits for memory.
    // The stride by reference: as a value it made branches of the predicated stores.
    template <class Io, class Between>
    static __device__ __forceinline__ void store_staged(unsigned vectors, Io* to, const i64& stride, int count,
                                                        Between&& between) {
        Raw<16> eight[kChunk / 16];
#pragma unroll
        for (int i = 0; i < kChunk / 16; ++i) eight[i].bits = load_shared(vectors + i * kRowBlockBytes);
        between();
#pragma unroll
        for (int i = 0; i < kChunk / 16; ++i)
            if (16 * i < count) eight[i].store_global(to + 16 * i * stride);
    }
};

}  // namespace gdn_cuda::gdn

#endif
