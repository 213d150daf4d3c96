// Descriptions of tensors for TMA.
#pragma once

#include <gdn_cuda/kernels/common/tensor_map.cuh>
#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda::jit {

// (batch, token, head, d) with d contiguous, 16-bit elements; strides in elements.
struct TiledTensor {
    Rows rows;
    i64 batches, tokens, heads, d;
};

// Whether TMA can take it: base and strides multiples of 16 bytes, no dimension expanded.
bool can_tile(const TiledTensor& tensor);

// Tiles of `tokens` tokens and 64 elements (128 bytes, swizzled); zeros come from outside the tensor, nothing is written there.
TensorMap tile_map(const TiledTensor& tensor, DType type, int tokens);

}  // namespace gdn_cuda::jit
