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

}  // namespace gdn_cuda::gdn
