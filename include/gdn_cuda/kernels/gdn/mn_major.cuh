// gdn/mn_major: transposes the last two dimensions in memory, and pads columns with zeros to a multiple of the alignment.
//
// A block stages tiles in shared memory: it reads along the input's columns and writes along its rows.
//
// Bound: memory, each element read and written once; at usual sizes (gates of a few thousand tokens) the launch. The share of a
// copy's bandwidth was not measured.
#pragma once

#include <gdn_cuda/kernels/common/bits_of.cuh>
#include <gdn_cuda/kernels/common/types.cuh>
#include <gdn_cuda/kernels/gdn/mn_major_plan.cuh>

namespace gdn_cuda::gdn {

template <MnMajorConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads) mn_major(const __grid_constant__ MnMajorArgs args) {
    __shared__ MnMajorSharedPlan<kConfig> shared;
    using T = typename BitsOf<kConfig.element_bytes>::type;
    constexpr int kTile = kConfig.tile, kStep = kConfig.threads / kConfig.tile;

    const i64 matrix = blockIdx.x;
    i64 remainder = matrix, offset = 0;
    for (int d = args.leading_dims - 1; d >= 0; --d) {
        offset += remainder % args.leading_size[d] * args.leading_stride[d];
        remainder /= args.leading_size[d];
    }
    const T* input = static_cast<const T*>(args.input) + offset;
    T* output = static_cast<T*>(args.output) + matrix * args.columns * args.padded_rows;
    const int x = threadIdx.x % kTile, y = threadIdx.x / kTile;

    for (i64 row0 = static_cast<i64>(blockIdx.y) * kTile; row0 < args.padded_rows;
         row0 += static_cast<i64>(gridDim.y) * kTile) {
        for (i64 column0 = static_cast<i64>(blockIdx.z) * kTile; column0 < args.columns;
             column0 += static_cast<i64>(gridDim.z) * kTile) {
            for (int i = y; i < kTile; i += kStep) {
                const i64 row = row0 + i, column = column0 + x;
                const bool inside = row < args.rows && column < args.columns;
                shared.tile[i][x] = inside ? input[row * args.row_stride + column * args.column_stride] : 0;
            }
            __syncthreads();
            for (int i = y; i < kTile; i += kStep) {
                const i64 row = row0 + x, column = column0 + i;
                if (row < args.padded_rows && column < args.columns)
                    output[column * args.padded_rows + row] = static_cast<T>(shared.tile[x][i]);
            }
            __syncthreads();
        }
    }
}

}  // namespace gdn_cuda::gdn
