// Tiles of a chunk's rows in shared memory, swizzled for ldmatrix: addresses, loads and stores.
#pragma once

#include <gdn_cuda/kernels/gdn/chunk_common.cuh>

namespace gdn_cuda::gdn {

// kChunk rows of bf16. The 16-byte pieces of each 128 bytes are XOR-swizzled, so that neither ldmatrix (a piece of each of
// eight rows) nor a warp that accesses half of each of two rows (16 bytes per lane) has bank conflicts. The XORed bits are the
// three lowest of the row, rotated, which no cute::Swizzle can express.
template <int kColumns>
struct alignas(128) ChunkTile {
    static_assert(kColumns % 32 == 0);
    static constexpr int kPieces = kColumns / 8, kRowBytes = kColumns * 2;
    unsigned char bytes[kChunk * kRowBytes];
};

}  // namespace gdn_cuda::gdn

#ifdef __CUDACC__

#include <gdn_cuda/kernels/common/cp_async.cuh>
#include <gdn_cuda/kernels/common/mma.cuh>
#include <gdn_cuda/kernels/common/vector.cuh>

namespace gdn_cuda::gdn {

// The shared-memory address of a row's 16-byte piece.
template <int kColumns>
__device__ __forceinline__ unsigned piece_at(const ChunkTile<kColumns>& tile, int row, int piece) {
    constexpr int kSwapped = ChunkTile<kColumns>::kPieces < 8 ? ChunkTile<kColumns>::kPieces - 1 : 7;
    const int swap = (row % 2 * 4 | row / 2 % 4) & kSwapped;
    return shared_address(tile.bytes) + row * ChunkTile<kColumns>::kRowBytes + (piece ^ swap) * 16;
}

// Addresses at constant offsets from a lane's first piece: all of the lane's addresses in a tile are one register plus
// constants. `rows` is a multiple of 8, and `pieces` has no bit in common with the first piece's index.
template <int kColumns>
struct PiecesFrom {
    unsigned first;

    __device__ __forceinline__ PiecesFrom(const ChunkTile<kColumns>& tile, int row, int piece)
        : first(piece_at(tile, row, piece)) {}
    __device__ __forceinline__ PiecesFrom(const ChunkTile<kColumns>& tile, VectorOfLane lane, int row, int piece)
        : PiecesFrom(tile, row + lane.row, piece + lane.vector) {}

    __device__ __forceinline__ unsigned at(int rows, int pieces) const {
        return (first ^ pieces % 8 * 16) + pieces / 8 * 128 + rows * ChunkTile<kColumns>::kRowBytes;
    }
};

// A warp's 16 rows of x y^T (tokens x tokens), in 16 x 16 blocks up to the diagonal.
using RowOfBlocks = float[kChunk / 16][2][4];
template <int kColumns>
__device__ __forceinline__ void add_token_products(RowOfBlocks& products, const ChunkTile<kColumns>& x,
                                                   const ChunkTile<kColumns>& y, int row_block, int lane) {
    const PiecesFrom own(x, VectorOfLane::straight(lane), 16 * row_block, 0);
    const PiecesFrom others(y, VectorOfLane::crossed(lane), 0, 0);
#pragma unroll
    for (int step = 0; step < kColumns / 16; ++step) {
        unsigned left[4];
        ldmatrix_x4(left, own.at(0, 2 * step));
#pragma unroll
        for (int column = 0; column < kChunk / 16; ++column) {
            if (column > row_block) break;
            unsigned right[4];
            ldmatrix_x4(right, others.at(16 * column, 2 * step));
            mma_m16n8k16<DType::bf16>(products[column][0], left, right[0], right[1]);
            mma_m16n8k16<DType::bf16>(products[column][1], left, right[2], right[3]);
        }
    }
}

using Row8 = Vector<__nv_bfloat16, 8, true>;

template <bool kAligned>
__device__ __forceinline__ Row8 load_piece(const __nv_bfloat16* from) {
    Row8 piece;
    if constexpr (kAligned) {
        piece.load(from);
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) piece.items[i] = from[i];
    }
    return piece;
}

// The block loads `count` rows of `columns` elements (a multiple of 8) into a tile and zeroes the rest of it. Aligned rows are
// loaded by cp.async: the caller commits and waits.
template <bool kAligned, int kThreads, int kColumns>
__device__ __forceinline__ void load_tile(ChunkTile<kColumns>& tile, const __nv_bfloat16* rows, i64 stride, int count,
                                          int columns) {
    constexpr int kPieces = ChunkTile<kColumns>::kPieces, kRowsAtOnce = kThreads / kPieces, kUnroll = kAligned ? 8 : 1;
    static_assert(kThreads % kPieces == 0 && kChunk % kRowsAtOnce == 0);
    int thread = threadIdx.x;
    asm volatile("" : "+r"(thread));  // keeps row addresses from being hoisted out of loops
    const int piece = thread % kPieces;
    const bool inside = piece * 8 < columns;
    int row = thread / kPieces;
    const __nv_bfloat16* from = rows + row * stride + piece * 8;
#pragma unroll kUnroll
    for (int i = 0; i < kChunk / kRowsAtOnce; ++i, row += kRowsAtOnce, from += kRowsAtOnce * stride) {
        const bool present = inside && row < count;
        if constexpr (kAligned) {
            cp_async_16_zfill(piece_at(tile, row, piece), from, present);
        } else {
            Row8 eight;
            eight.clear();
            if (present) eight = load_piece<false>(from);
            store_shared(piece_at(tile, row, piece), *reinterpret_cast<const uint4*>(eight.items));
        }
    }
}

template <bool kAligned>
__device__ __forceinline__ void store_piece(__nv_bfloat16* to, const unsigned (&x)[4]) {
    if constexpr (kAligned) {
        Raw<16>{{x[0], x[1], x[2], x[3]}}.store_global(to);
    } else {
        auto* out = reinterpret_cast<unsigned short*>(to);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            out[2 * i] = static_cast<unsigned short>(x[i] & 0xffffu);
            out[2 * i + 1] = static_cast<unsigned short>(x[i] >> 16);
        }
    }
}

// 4 x 4 transpose over four adjacent lanes: x[i] of this lane becomes x[lane] of lane i. Four MMA tiles with two columns per
// lane become one tile with eight columns per lane, which is a 16-byte store.
__device__ __forceinline__ void transpose_quad(unsigned (&x)[4]) {
#pragma unroll
    for (int step = 1; step <= 2; step *= 2) {
        const bool upper = threadIdx.x & step;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (i & step) continue;
            const unsigned received = __shfl_xor_sync(0xffffffffu, upper ? x[i] : x[i + step], step);
            (upper ? x[i] : x[i + step]) = received;
        }
    }
}

}  // namespace gdn_cuda::gdn

#endif
