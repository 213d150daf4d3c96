// A lane's addresses in tiles of 16 tokens (gdn/kda_mma).
#pragma once

#include <gdn_cuda/kernels/gdn/kda_mma/plan.cuh>

namespace gdn_cuda::gdn {

// From the start of a row of tiles to a vector in the first of them.
__device__ __forceinline__ unsigned kda_tile_vector(unsigned row, unsigned vector) {
    return row * 128 + ((vector ^ row % 8 ^ row / 8 * 4) << 4);
}
// The vector that a lane passes to ldmatrix, at steps of 16 channels.
struct KdaTileRow {
    const unsigned first, tile_bytes;

    template <class Tile>
    __device__ __forceinline__ KdaTileRow(const Tile* tiles, unsigned row, unsigned vector)
        : first(shared_address(tiles) + kda_tile_vector(row, vector)), tile_bytes(sizeof(Tile)) {}
    __device__ __forceinline__ KdaTileRow(const KdaMmaTile* tiles, const VectorOfLane& place)
        : KdaTileRow(tiles, place.row, place.vector) {}
    __device__ __forceinline__ unsigned at(int step) const { return (first ^ step % 4 << 5) + step / 4 * tile_bytes; }
};

}  // namespace gdn_cuda::gdn
