// What a chain stores of each chunk for gdn/backward_gradients.
#pragma once

#include <gdn_cuda/kernels/chunked/state_owner.cuh>
#include <gdn_cuda/kernels/common/stmatrix.cuh>
#include <gdn_cuda/kernels/gdn/backward_chain/args.cuh>

namespace gdn_cuda::gdn {

template <class Owner>
__device__ __forceinline__ const BackwardHandover& handover_of(const Owner& own) {
    return static_cast<const BackwardChainArgs&>(own.args).to;
}
// The chunk's place in the handover, among those of all heads.
template <class Owner>
__device__ __forceinline__ i64 handover_index(const Owner& own, int chunk) {
    const ChunkedWork& work = own.work;
    return work.head * handover_of(own).chunks +
           first_chunk_index(is_packed(own.args), work.sequence, work.tokens.start, own.args.call.tokens) +
           in_time<Owner::kConfig>(work.tokens, chunk);
}

// The owner's 64 rows of its state, rounded as the chunk's products read it. Call while no store of the thread's reads the
// tiles that the state is staged in.
template <class Owner>
__device__ __forceinline__ void store_rounded_state(const Owner& own, i64 index) {
    auto& tiles = own.shared.states;
    const unsigned to = tile_row(tiles[0].bytes, 16 * own.warp + own.lane % 16);
    if (own.thread == 0) cute::tma_store_wait<0>();
    own.warpgroup_sync();
#pragma unroll
    for (int step = 0; step < Owner::kStateSteps; ++step) {
        const auto& x = own.rounded_state[step];
        stmatrix_x4(row_vector(to, step % 4 * 2 + own.lane / 16) + step / 4 * static_cast<int>(sizeof(SwizzledTile)), x[0],
                    x[1], x[2], x[3]);
    }
    cutlass::arch::fence_view_async_shared();
    own.warpgroup_sync();
    if (own.thread > 0) return;
    const int row = own.work.first_row + own.index() * kValueRows;
#pragma unroll
    for (int tile = 0; tile < Owner::kConfig.key_tiles(); ++tile)
        tma_store(static_cast<const BackwardChainArgs&>(own.args).states,
                  {tile * kTileElements, 0, row, static_cast<int>(index)}, tiles[tile].bytes);
    cute::tma_store_arrive();
}

// A chunk's scalars, by the owner of the first rows.
template <class Owner>
__device__ __forceinline__ void store_scalars(const Owner& own, i64 index, int stage, bool cancels) {
    if (own.work.first_row > 0 || own.index() > 0 || own.thread >= kChunk) return;
    const auto& factors = own.shared.factors[stage];
    ChunkScalars& to = handover_of(own).scalars[index];
    to.gate[own.thread] = factors.gate[own.thread];
    to.beta[own.thread] = factors.beta[own.thread];
    to.query_norm[own.thread] = factors.query_norm[own.thread];
    to.key_norm[own.thread] = factors.key_norm[own.thread];
    if (own.thread == 0) to.cancels = cancels;
}

}  // namespace gdn_cuda::gdn
