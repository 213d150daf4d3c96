// gdn/backward_chain: the two chains of the backward on Hopper's tensor cores. A value warpgroup owns 64 rows of the state S, or
// of its gradient E, and takes them from chunk to chunk in registers; T, P and factors come from gdn/backward_prepare.
//
//     backward in time  E before each chunk of the chain, which is the gradient of the state after it; dV; the gradient of the
//                       initial state (backward_chain/gradients.cuh)
//     forward in time   S before each chunk, and R (backward_chain/states.cuh)
//
// Neither needs the other: the second launch starts where the first leaves multiprocessors, and ends after it.
//
// Bound: latency of a chunk's chain of products. A block takes a whole sequence; nothing is split along time.
#pragma once

#include <gdn_cuda/kernels/chunked/block.cuh>
#include <gdn_cuda/kernels/common/dependent_launch.cuh>
#include <gdn_cuda/kernels/gdn/backward_chain/gradients.cuh>
#include <gdn_cuda/kernels/gdn/backward_chain/loads.cuh>
#include <gdn_cuda/kernels/gdn/backward_chain/states.cuh>

namespace gdn_cuda::gdn {

template <BackwardChainConfig kConfig>
__device__ __forceinline__ void run_values(BackwardChainPlan<kConfig>& shared, const BackwardChainArgs& args) {
    using Rule = cute::conditional_t<kConfig.direction == Direction::backward, StateGradientsRule, StatesRule>;
    BackwardOwner<kConfig> own(shared, args, shared.work);
    const bool past_rows = kConfig.value_groups > 1 && shared.work.first_row + own.index() * kValueRows >= shared.work.rows;
    if (past_rows) {  // leaves the SM to the other
#pragma unroll 1
        for (int chunk = 0; chunk < shared.work.tokens.chunks; ++chunk) {
            const PipelineStage<kConfig.block().stages> current(chunk);
            barrier(shared.stage_full[current.index]).wait(current.parity);
            own.release(current.index);
        }
        return;
    }
    load_state(own, initial_state(own));
    warpgroup_fence_operand(own.state);
    own.round_state();
#pragma unroll 1
    for (int chunk = 0; chunk < shared.work.tokens.chunks; ++chunk) Rule::run(own, chunk);
    own.find_lane();
    store_state(own, final_state(own));
    if (own.thread == 0) cute::tma_store_wait<0>();
}

// The block's sequence, head and rows. False if it has no chunks.
template <BackwardChainConfig kConfig>
__device__ __forceinline__ bool start_block(BackwardChainPlan<kConfig>& shared, const BackwardChainArgs& args) {
    const int pair = static_cast<int>(blockIdx.z) * args.call.heads + static_cast<int>(blockIdx.y);
    ChunkedBlock<kConfig.block()> block(args, pair, static_cast<int>(blockIdx.x));
    block.finish_without_chunks();
    if (block.chunks == 0) return false;
    if (threadIdx.x == 0) {
        block.plan_outputs(shared.work, 0, block.chunks);
        for (auto& word : shared.stage_full) barrier(word).init(2);
        for (auto& word : shared.stage_empty) barrier(word).init(kConfig.value_groups * 4);
        barrier(shared.tail_full).init(1);
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
    constexpr bool kFirst = kConfig.direction == Direction::backward;
    if (kFirst) launch_dependent_grids();
    if (start_block(shared, args)) {
        if (__shfl_sync(0xffffffffu, threadIdx.x / kWarpgroup, 0) == 0) {
            cutlass::arch::warpgroup_reg_dealloc<kConfig.loading_registers()>();
            BackwardChainLoads<kConfig>{shared, args}.run();
        } else {
            cutlass::arch::warpgroup_reg_alloc<kConfig.value_registers()>();
            run_values(shared, args);
        }
    }
    if (!kFirst && blockIdx.x + blockIdx.y + blockIdx.z == 0) wait_on_dependent_grids();
}

}  // namespace gdn_cuda::gdn
