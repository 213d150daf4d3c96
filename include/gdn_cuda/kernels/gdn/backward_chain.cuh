// gdn/backward_chain: the two chains of the backward on Hopper's tensor cores, as gdn/prefill computes outputs: the same helper
// roles form T and P ahead of a value warpgroup, which owns 64 rows of the state S or of its gradient E.
//
//     backward in time  E before each chunk of the chain, which is the gradient of the state after it; dV; the gradient of the
//                       initial state; the scalars of each chunk (backward_chain/gradients.cuh)
//     forward in time   S before each chunk, and R (backward_chain/states.cuh)
//
// Neither needs the other: with few blocks, the second launch starts while the first runs, and ends after it.
//
// Bound: latency of a chunk's chain of products: on an H200 2.6 us a chunk, with 8 heads as with 32. A block takes a whole
// sequence; nothing is split along time yet.
#pragma once

#include <gdn_cuda/kernels/chunked/run.cuh>
#include <gdn_cuda/kernels/common/dependent_launch.cuh>
#include <gdn_cuda/kernels/gdn/backward_chain/gradients.cuh>
#include <gdn_cuda/kernels/gdn/backward_chain/states.cuh>

namespace gdn_cuda::gdn {

template <ChunkedConfig kConfig>
using BackwardChainRole =
    ValueRole<kConfig, cute::conditional_t<kConfig.direction == Direction::backward, StateGradientsRule, StatesRule>>;

template <ChunkedConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 1) backward_chain(const __grid_constant__ BackwardChainArgs args) {
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& shared = *reinterpret_cast<ChunkedPlan<kConfig>*>(memory);
    static_assert(sizeof(shared) <= 227 * 1024);
    static_assert(kConfig.trains);
    constexpr bool kFirst = kConfig.direction == Direction::backward;
    if (kFirst) launch_dependent_grids();
    run_block<BackwardChainRole>(shared, args);
    if (!kFirst && blockIdx.x + blockIdx.y + blockIdx.z == 0) wait_on_dependent_grids();
}

}  // namespace gdn_cuda::gdn
