// The lower triangle of a chunk's tokens x tokens in fp32, as blocks in shared memory; for host and device.
#pragma once

#include <gdn_cuda/kernels/chunked/chunk.cuh>

namespace gdn_cuda::gdn {

// A 16 x 16 block of -A; on the diagonal, later of the inverse. The 8-column halves of rows 2 and 3 of every 4 are swapped,
// so that four rows of eight columns hit 32 different banks.
struct alignas(16) TriangleBlock {
    static constexpr int kEightRows = 8 * 16;
    float values[16 * 16];

    GDN_HOST_DEVICE static constexpr int at(int row, int column) { return row * 16 + (column ^ (row >> 1 & 1) * 8); }
};
constexpr int kTriangleBlocks = 10;  // row by row

// A 16 x 16 block in fp16: 16-byte vector p of row r is at p ^ (r / 4 % 2), so that eight rows hit 32 different banks.
struct alignas(16) HalfBlock {
    unsigned char bytes[16 * 16 * 2];

    GDN_HOST_DEVICE static constexpr int vector(int row, int p) { return row * 32 + ((p ^ (row / 4 % 2)) << 4); }
};
struct HalfBlocks {
    static constexpr int kEighth = 80;  // floats from one 8 x 8 block to the next: no bank conflicts
    HalfBlock blocks[kTriangleBlocks];  // A' below the diagonal, row by row; on it the transposes of N
    float diagonal[4][2 * kEighth];     // the 8 x 8 blocks of A' on its diagonal
};

}  // namespace gdn_cuda::gdn
