// Elements of swizzled tiles of a chunk's tokens, as the owner of 16 rows of a state in each warp reads and writes them where
// it takes the tokens one by one: a thread holds rows g and g + 8, columns 8 n + 2 t and + 1.
#pragma once

#include <gdn_cuda/kernels/common/pairs.cuh>
#include <gdn_cuda/kernels/common/shared.cuh>
#include <gdn_cuda/kernels/common/storage.cuh>

namespace gdn_cuda::gdn {

// Columns 8 n + 2 t and + 1 of a token.
template <DType kIo, class Tile>
__device__ __forceinline__ float2 load_pair(const Tile* tiles, int token, int n, int t) {
    return unpack<kIo>(load_shared_word(row_vector(tile_row(tiles[n / 8].bytes, token), n % 8) + 4 * t));
}
// Element of a token in this thread's first or second row.
template <class Owner, class Tile>
__device__ __forceinline__ auto& element_of_row(const Owner& own, Tile& tile, int token, int half) {
    using Io = Storage<Owner::kIo>;
    return reinterpret_cast<Io*>(tile.bytes + token * 128 + (((2 * own.warp + half) ^ token % 8) << 4))[own.g];
}
// Sum over the four threads that hold a row.
__device__ __forceinline__ float sum_over_row(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

}  // namespace gdn_cuda::gdn
