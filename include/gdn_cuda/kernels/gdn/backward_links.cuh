// gdn/backward_links: the states at the borders of a chain's segments (ChainSegments), from the state after the first one:
//
//     S <- S M + L, segment after segment, in fp32 (gdn/compose.cuh).
//
// Bound: latency, as segments follow one another: 2 us each on an H200. Every block reads all of M.
#pragma once

#include <gdn_cuda/kernels/gdn/backward_links_plan.cuh>
#include <gdn_cuda/kernels/gdn/compose.cuh>

namespace gdn_cuda::gdn {

template <BackwardLinksConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads()) backward_links(const __grid_constant__ BackwardLinksArgs args) {
    using Rows = ComposedRows<kConfig.columns, kConfig.rows, kConfig.kParts>;
    __shared__ typename Rows::Shared shared;
    const ChainSegments& chain = args.chains[blockIdx.z];
    const int between = chain.between(), first_row = static_cast<int>(blockIdx.x) * kConfig.rows;
    const int sequence = static_cast<int>(blockIdx.y) / args.heads, head = static_cast<int>(blockIdx.y) % args.heads;
    float* after = chain.state_after(sequence, head, 0);
    const float* transition = chain.transitions + static_cast<i64>(blockIdx.y) * between * args.dk * args.dk;

    Rows rows(shared, args.dk, first_row, args.dv);
    rows.load_rows(after);
    rows.begin();
    const auto load_next = [&](const float* next) {
        transition += static_cast<i64>(args.dk) * args.dk;
        rows.load_transition(transition);
        rows.load_rows(next);
    };
    if (between > 1) load_next(after + chain.segment_stride);
#pragma unroll 1
    for (int segment = 1; segment < between; ++segment) {
        after += chain.segment_stride;
        float found[Rows::kOwn];
        rows.follow(found, [&] {
            if (segment + 1 < between) load_next(after + chain.segment_stride);
        });
        rows.store_rows(after, found);
    }
}

}  // namespace gdn_cuda::gdn
