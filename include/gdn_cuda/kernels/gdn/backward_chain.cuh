// gdn/backward_chain: the two chains of the backward on Hopper's tensor cores. A warpgroup owns 64 rows of the state S, or of
// its gradient E, and takes them from chunk to chunk in registers; T, P and factors come from gdn/backward_prepare.
//
//     backward in time  E before each chunk of the chain, which is the gradient of the state after it; dV; the gradient of the
//                       initial state (backward_chain/gradients.cuh)
//     forward in time   S before each chunk, and R (backward_chain/states.cuh)
//
// Warps of another warpgroup load and store; forward, a third stores R. Neither chain needs the other: the second launch starts
// where the first leaves multiprocessors, and ends after it.
//
// Bound: latency of a chunk's chain of products. A block takes a whole sequence; nothing is split along time.
#pragma once

#include <gdn_cuda/kernels/chunked/block.cuh>
#include <gdn_cuda/kernels/common/dependent_launch.cuh>
#include <gdn_cuda/kernels/gdn/backward_chain/gradients.cuh>
#include <gdn_cuda/kernels/gdn/backward_chain/states.cuh>

namespace gdn_cuda::gdn {

// The block's sequence, head and rows. False if it has no chunks.
template <BackwardChainConfig kConfig, class Roles>
__device__ __forceinline__ bool start_block(BackwardChainPlan<kConfig>& shared, const BackwardChainArgs& args,
                                            const Roles& roles) {
    const int pair = static_cast<int>(blockIdx.z) * args.call.heads + static_cast<int>(blockIdx.y);
    ChunkedBlock<kConfig.block()> block(args, pair, static_cast<int>(blockIdx.x));
    block.finish_without_chunks();
    if (block.chunks == 0) return false;
    if (threadIdx.x == 0) {
        block.plan_outputs(shared.work, 0, block.chunks);
        roles.set_barriers();
        barrier(shared.state_full).init(4);
        barrier(shared.state_empty).init(1);
        cutlass::arch::fence_barrier_init();
    }
    __syncthreads();
    return true;
}

template <BackwardChainConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 1) backward_chain(const __grid_constant__ BackwardChainArgs args) {
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& shared = *reinterpret_cast<BackwardChainPlan<kConfig>*>(memory);
    static_assert(sizeof(shared) <= 227 * 1024);
    constexpr bool kBackward = kConfig.direction == Direction::backward;
    if (kBackward) launch_dependent_grids();
    const cute::conditional_t<kBackward, StateGradients<kConfig>, States<kConfig>> roles{shared, args};
    if (start_block<kConfig>(shared, args, roles)) {
        const int group = __shfl_sync(0xffffffffu, threadIdx.x / kWarpgroup, 0);
        if (group == 0) {
            cutlass::arch::warpgroup_reg_dealloc<kConfig.kLoadingRegisters>();
            roles.run_loads(__shfl_sync(0xffffffffu, threadIdx.x / 32, 0));
        } else if (group == 1) {
            cutlass::arch::warpgroup_reg_alloc<kConfig.kOtherRegisters>();
            roles.run_beside();
        } else {
            cutlass::arch::warpgroup_reg_alloc<kConfig.kOtherRegisters>();
            BackwardOwner<kConfig> own(shared, args, shared.work);
            load_state(own, initial_state(own));
            warpgroup_fence_operand(own.state);
            own.round_state();
            roles.run_chain(own);
            own.find_lane();
            store_state(own, final_state(own));
        }
    }
    if (kBackward || blockIdx.x + blockIdx.y + blockIdx.z > 0) return;
    __syncthreads();  // a warp that waits here would hold up the block's others
    wait_on_dependent_grids();
}

}  // namespace gdn_cuda::gdn
