// gdn/backward_links: the states at the borders of a chain's segments (ChainSegments), from the state after the first one:
//
//     S <- S M + L, segment after segment, in fp32.
//
// A block takes a few rows of a state; a thread has a column of them.
//
// Bound: on an H200 9 us a segment, and not the loads of M: with 64 of its rows in flight it takes no less than with 16. The
// reads of the state, one word at a time from shared memory, are suspected.
#pragma once

#include <gdn_cuda/kernels/gdn/backward_links_plan.cuh>

namespace gdn_cuda::gdn {

template <BackwardLinksConfig kConfig>
__global__ void __launch_bounds__(kConfig.columns) backward_links(const __grid_constant__ BackwardLinksArgs args) {
    constexpr int kRows = kConfig.rows, kAtOnce = 64;  // rows of M in flight
    static_assert(kConfig.columns % kAtOnce == 0);
    __shared__ float shared[kRows][kConfig.columns];  // the state, with zeros past dk
    const ChainSegments& chain = args.chains[blockIdx.z];
    const int column = static_cast<int>(threadIdx.x), first = static_cast<int>(blockIdx.x) * kRows, dk = args.dk;
    const int rows = min(kRows, args.dv - first), between = chain.count - 1;
    const i64 pair = blockIdx.y;
    float* after = chain.after + (pair * between * args.dv + first) * dk + column;
    const float* transition = chain.transitions + pair * between * dk * dk + column;
    const bool mine = column < dk;
#pragma unroll
    for (int row = 0; row < kRows; ++row) shared[row][column] = mine && row < rows ? after[row * dk] : 0.f;
#pragma unroll 1
    for (int segment = 1; segment < between; ++segment) {
        after += static_cast<i64>(args.dv) * dk;
        transition += static_cast<i64>(dk) * dk;
        __syncthreads();
        float sums[kRows];
#pragma unroll
        for (int row = 0; row < kRows; ++row) sums[row] = mine && row < rows ? after[row * dk] : 0.f;
#pragma unroll 1
        for (int begin = 0; begin < dk; begin += kAtOnce) {
            float m[kAtOnce];
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) m[i] = mine && begin + i < dk ? transition[(begin + i) * dk] : 0.f;
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
                for (int row = 0; row < kRows; ++row) sums[row] = fmaf(shared[row][begin + i], m[i], sums[row]);
        }
        __syncthreads();
#pragma unroll
        for (int row = 0; row < kRows; ++row) {
            shared[row][column] = sums[row];
            if (mine && row < rows) after[row * dk] = sums[row];
        }
    }
}

}  // namespace gdn_cuda::gdn
