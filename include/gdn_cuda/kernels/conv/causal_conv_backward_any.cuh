// conv/causal_conv_backward_any: gradients of a causal convolution where there are several sequences, or states
// (causal_conv_backward/tile.cuh): those of 1 or more than 8 taps, and of rows that are not whole vectors.
#pragma once

#include <gdn_cuda/kernels/conv/causal_conv_backward/tile.cuh>

namespace gdn_cuda::conv {

template <CausalTileConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 2)
    causal_conv_backward_any(const __grid_constant__ CausalBackwardArgs args) {
    extern __shared__ __align__(16) unsigned char memory[];
    run_causal_backward<kConfig, true>(args, memory);
}

}  // namespace gdn_cuda::conv
