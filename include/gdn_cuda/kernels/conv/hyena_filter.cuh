// conv/hyena_filter: the filter of Hyena's modal form, h[d, t] = Σ_s residues[d, s] e^{log_poles[d, s] t}.
//
// A block computes some thousand tokens of a row. A lane has 8 tokens, 32 apart, so that a warp stores 128 contiguous bytes
// at any alignment. It raises each pole once, to its first token, and multiplies by powers of 32, 64, … tokens, which the
// block keeps in shared memory. No power comes from a chain of products, so no error accumulates.
//
// Bound: memory, 4 bytes a token; S fp32 FMAs and S / 8 exponentials a token take less time up to S = 16.
#pragma once

#include <gdn_cuda/kernels/conv/hyena_filter/powers.cuh>

namespace gdn_cuda::conv {

template <HyenaFilterConfig kConfig>
__global__ void __launch_bounds__(kHyenaFilterThreads) hyena_filter(const __grid_constant__ HyenaFilterArgs args) {
    __shared__ HyenaFilterSharedPlan shared;
    const i64 tiles = ceil_div(args.tokens, kConfig.tokens()), row = blockIdx.x / tiles;
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    for (int s = thread; s < args.count; s += kHyenaFilterThreads) {
        shared.residues[s] = args.residues[row * args.count + s];
        shared.log_poles[s] = args.log_poles[row * args.count + s];
        shared.powers[s] = powers_of_lane(shared.log_poles[s]);
    }
    __syncthreads();

    const i64 tile = (blockIdx.x - row * tiles) * kConfig.tokens();
    for (int stretch = 0; stretch < kConfig.stretches; ++stretch) {
        const i64 first = tile + (stretch * kHyenaFilterWarps + warp) * kHyenaFilterStretch + lane;
        if (first - lane >= args.tokens) return;
        float h[kHyenaFilterLaneTokens]{};
        for (int s = 0; s < args.count; ++s) {
            const float scale = shared.residues[s] * power_of_pole(shared.log_poles[s], static_cast<float>(first));
#pragma unroll
            for (int i = 0; i < kHyenaFilterLaneTokens; ++i) h[i] = fmaf(scale, shared.powers[s].values[i], h[i]);
        }
        float* const to = args.filter + row * args.tokens;
#pragma unroll
        for (int i = 0; i < kHyenaFilterLaneTokens; ++i)
            if (first + 32 * i < args.tokens) to[first + 32 * i] = h[i];
    }
}

}  // namespace gdn_cuda::conv
