// scan/selective_backward_sums: adds up the partial sums that blocks and sequences of scan/selective_backward wrote, in a fixed
// order, and writes the gradients of A, B, C, D and the bias.
//
// A thread computes one sum at a time, adjacent threads those of adjacent columns; blockIdx.y selects the gradient.
//
// Bound: memory, 4 bytes for each partial sum.
#pragma once

#include <gdn_cuda/kernels/common/numeric.cuh>
#include <gdn_cuda/kernels/scan/selective_backward_sums_plan.cuh>

namespace gdn_cuda::scan {

template <SelectiveBackwardSumsConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads)
    selective_backward_sums(const __grid_constant__ SelectiveBackwardSumsArgs args) {
    const PartialSums& sums = args.each[blockIdx.y];
    const i64 step = static_cast<i64>(gridDim.x) * kConfig.threads, count = sums.sums();
    const i64 partial_stride = count / sums.columns * sums.pitch;  // distance of two partials
    for (i64 i = static_cast<i64>(blockIdx.x) * kConfig.threads + threadIdx.x; i < count; i += step) {
        i64 line = i / sums.columns;
        const int column = static_cast<int>(i - line * sums.columns);
        const float* from = sums.from + line * sums.pitch + column;
        float sum = 0.f;
#pragma unroll 8
        for (int partial = 0; partial < sums.partials; ++partial) sum += from[partial * partial_stride];
        const i64 token = line % sums.tokens;
        line /= sums.tokens;
        const i64 group = line % sums.groups, row = line / sums.groups;
        const Coefficients& to = sums.to;
        const int parts = to.pair != 0 ? 2 : 1;
        store_float(to.data, to.type,
                    row * to.batch + group * to.group + token * to.token + column / parts * to.n + column % parts * to.pair,
                    sum);
    }
}

}  // namespace gdn_cuda::scan
