// gdn/decode_layer_alone: gdn/decode_layer for GPUs without clusters. One block has a key head.
//
// Bound: memory, as there; few sequences leave most of the GPU idle.
#pragma once

#include <gdn_cuda/kernels/gdn/decode_layer.cuh>

namespace gdn_cuda::gdn {

template <DecodeLayerConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.blocks_at_least())
    decode_layer_alone(const __grid_constant__ DecodeLayerArgs args) {
    run_layer<kConfig>(args);
}

}  // namespace gdn_cuda::gdn
