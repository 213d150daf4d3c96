// gdn/backward_links: the states at the borders of a chain's segments (ChainSegments), from the state after the first one:
//
//     S <- S M + L, segment after segment, in fp32.
//
// A block takes a few rows of a state. Four threads share a column of M, a quarter of its rows each in registers, and load
// those of the next segment before they multiply.
//
// Bound: latency, as segments follow one another: 2 us each on an H200. Every block reads all of M.
#pragma once

#include <gdn_cuda/kernels/gdn/backward_links_plan.cuh>

namespace gdn_cuda::gdn {

template <BackwardLinksConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads()) backward_links(const __grid_constant__ BackwardLinksArgs args) {
    constexpr int kColumns = kConfig.columns, kRows = kConfig.rows, kParts = kConfig.kParts;
    constexpr int kDepth = kColumns / kParts, kOwn = kRows / kParts;  // of a thread: rows of M, and of the state
    __shared__ __align__(16) float state[kRows][kColumns];            // with zeros past dk
    __shared__ float sums_of[kParts][kRows][kColumns];
    const ChainSegments& chain = args.chains[blockIdx.z];
    const int column = static_cast<int>(threadIdx.x) % kColumns, part = static_cast<int>(threadIdx.x) / kColumns, dk = args.dk;
    const int first = static_cast<int>(blockIdx.x) * kRows + part * kOwn, between = chain.between();
    const int rows = column < dk ? args.dv - first : 0,
              depth = column < dk ? dk - part * kDepth : 0;  // may be more, or negative
    const int sequence = static_cast<int>(blockIdx.y) / args.heads, head = static_cast<int>(blockIdx.y) % args.heads;
    float* after = chain.state_after(sequence, head, 0) + first * dk + column;
    const float* transition = chain.transitions + (static_cast<i64>(blockIdx.y) * between * dk + part * kDepth) * dk + column;

    float m[kDepth], added[kOwn];
    const auto load = [&](const float* from) {
#pragma unroll
        for (int i = 0; i < kDepth; ++i) {
            m[i] = i < depth ? *from : 0.f;
            from += dk;
        }
    };
    const auto load_rows = [&](const float* from) {
#pragma unroll
        for (int row = 0; row < kOwn; ++row) added[row] = row < rows ? from[row * dk] : 0.f;
    };
    load_rows(after);
#pragma unroll
    for (int row = 0; row < kOwn; ++row) state[part * kOwn + row][column] = added[row];
    const auto load_next = [&] {
        transition += static_cast<i64>(dk) * dk;
        load(transition);
        load_rows(after + chain.segment_stride);
    };
    if (between > 1) load_next();
#pragma unroll 1
    for (int segment = 1; segment < between; ++segment) {
        float current[kDepth], found[kOwn];
#pragma unroll
        for (int i = 0; i < kDepth; ++i) current[i] = m[i];
#pragma unroll
        for (int row = 0; row < kOwn; ++row) found[row] = added[row];
        after += chain.segment_stride;
        if (segment + 1 < between) load_next();
        __syncthreads();
#pragma unroll
        for (int row = 0; row < kRows; ++row) {
            float sum = 0.f;
#pragma unroll
            for (int i = 0; i < kDepth; i += 4) {
                const float4 s = *reinterpret_cast<const float4*>(&state[row][part * kDepth + i]);
                sum =
                    fmaf(s.x, current[i], fmaf(s.y, current[i + 1], fmaf(s.z, current[i + 2], fmaf(s.w, current[i + 3], sum))));
            }
            sums_of[part][row][column] = sum;
        }
        __syncthreads();
#pragma unroll
        for (int row = 0; row < kOwn; ++row) {
            const int at = part * kOwn + row;
#pragma unroll
            for (int each = 0; each < kParts; ++each) found[row] += sums_of[each][at][column];
            state[at][column] = found[row];
            if (row < rows) after[row * dk] = found[row];
        }
    }
}

}  // namespace gdn_cuda::gdn
