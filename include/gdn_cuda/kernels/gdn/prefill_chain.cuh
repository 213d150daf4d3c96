// gdn/prefill_chain: S <- S M + L from segment to segment, for sequences that gdn/prefill takes in segments and whose states
// reach across them.
//
// A block has a few rows of a head's state, in shared memory; a thread has a column of them. Matrices M are copied one ahead.
//
// Bound: the latency of one segment after another, some 1.5 us each; it is 2 % of the prefill around it.
#pragma once

#include <gdn_cuda/kernels/common/async_copy.cuh>
#include <gdn_cuda/kernels/gdn/prefill_chain_plan.cuh>

namespace gdn_cuda::gdn {

template <PrefillChainConfig kConfig>
__global__ void __launch_bounds__(kConfig.head_k, 1) prefill_chain(const __grid_constant__ PrefillChainArgs args) {
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<PrefillChainSharedPlan<kConfig>*>(memory);

    const PrefillSummaries& all = args.summaries;
    const int dk = args.dk, first_row = static_cast<int>(blockIdx.x) * kConfig.rows,
              rows = min(kConfig.rows, args.dv - first_row);
    const i64 first = (static_cast<i64>(blockIdx.z) * args.heads + blockIdx.y) * all.count;
    const int column = static_cast<int>(threadIdx.x);
    const auto link = [&](int segment) { return segment < all.count ? all.links[first + segment] : kUnused; };
    const auto copy = [&](int segment) {
        if (link(segment) == kContinues) {
            const float* from = all.transfers + (first + segment) * dk * dk;
            for (int i = 4 * column; i < dk * dk; i += 4 * kConfig.head_k)
                async_copy_16(&shared.transfers[segment % 2][i], from + i);
        }
        async_copy_commit();
    };

    copy(0);
#pragma unroll 1
    for (int segment = 0; segment < all.count; ++segment) {
        const int kind = link(segment);
        copy(segment + 1);
        if (kind == kUnused) continue;
        async_copy_wait<1>();
        __syncthreads();
        float* states = all.states + ((first + segment) * args.dv + first_row) * dk + column;
        float sums[kConfig.rows];
#pragma unroll
        for (int row = 0; row < kConfig.rows; ++row) sums[row] = row < rows && column < dk ? states[row * dk] : 0.f;
        if (kind == kContinues) {
            const float* transfer = &shared.transfers[segment % 2][min(column, dk - 1)];
#pragma unroll 4
            for (int k = 0; k < dk; ++k) {
                const float m = transfer[k * dk];
#pragma unroll
                for (int row = 0; row < kConfig.rows; ++row) sums[row] = fmaf(shared.state[row][k], m, sums[row]);
            }
#pragma unroll
            for (int row = 0; row < kConfig.rows; ++row)
                if (row < rows && column < dk) states[row * dk] = sums[row];
        }
        __syncthreads();
#pragma unroll
        for (int row = 0; row < kConfig.rows; ++row) shared.state[row][column] = sums[row];
    }
}

}  // namespace gdn_cuda::gdn
