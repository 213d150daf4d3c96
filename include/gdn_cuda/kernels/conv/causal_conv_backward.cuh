// conv/causal_conv_backward: gradients of a causal convolution where a row is one sequence without a state
// (causal_conv_backward/tile.cuh).
#pragma once

#include <gdn_cuda/kernels/conv/causal_conv_backward/tile.cuh>

namespace gdn_cuda::conv {

template <CausalTileConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), bytes_of(kConfig.io) == 4 ? 3 : 4)
    causal_conv_backward(const __grid_constant__ CausalBackwardArgs args) {
    extern __shared__ __align__(16) unsigned char memory[];
    run_causal_backward<kConfig, false>(args, memory);
}

}  // namespace gdn_cuda::conv
