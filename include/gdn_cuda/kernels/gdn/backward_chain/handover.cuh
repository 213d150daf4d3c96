// What a chain stores of each chunk for gdn/backward_gradients.
#pragma once

#include <gdn_cuda/kernels/chunked/state_owner.cuh>
#include <gdn_cuda/kernels/common/stmatrix.cuh>
#include <gdn_cuda/kernels/gdn/backward_chain/plan.cuh>

namespace gdn_cuda::gdn {

template <BackwardChainConfig kConfig>
using BackwardOwner = StateOwner<kConfig.block(), BackwardChainPlan<kConfig>>;

// The chunk's place in the handover, among those of all heads.
template <class Owner>
__device__ __forceinline__ int handover_index(const Owner& own, int chunk) {
    const ChunkedWork& work = own.work;
    const auto& args = static_cast<const BackwardChainArgs&>(own.args);
    return static_cast<int>(first_prepared(args, args.to, work.head, work.sequence, work.tokens.start)) +
           in_time<Owner::kConfig>(work.tokens, chunk);
}

// The owner's 64 rows of its state, rounded as the chunk's products read it. Call while no store of the thread's reads the
// tiles that the state is staged in.
template <class Owner>
__device__ __forceinline__ void store_rounded_state(const Owner& own, int chunk) {
    auto& tiles = own.shared.states[own.index()];
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
    const int row = own.work.first_row + own.index() * kValueRows, index = handover_index(own, chunk);
#pragma unroll
    for (int tile = 0; tile < Owner::kConfig.key_tiles(); ++tile)
        tma_store(static_cast<const BackwardChainArgs&>(own.args).states, {tile * kTileElements, 0, row, index},
                  tiles[tile].bytes);
    cute::tma_store_arrive();
}

}  // namespace gdn_cuda::gdn
