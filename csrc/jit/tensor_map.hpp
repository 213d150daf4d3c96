// TMA descriptors (tensor maps).
#pragma once

#include <gdn_cuda/kernels/common/tensor_map.cuh>
#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda::jit {

// (batch, token, head, d) with d contiguous, 16-bit elements; strides in elements.
struct TiledTensor {
    Rows rows;
    i64 batches, tokens, heads, d;
};

// Whether TMA supports it: base and strides are multiples of 16 bytes, no dimension is expanded.
bool can_tile(const TiledTensor& tensor);

// Tiles of `tokens` x 64 elements (128-byte rows, 128B swizzle). Out-of-bounds reads give zeros; out-of-bounds writes are
// dropped. Empty for the stand-in of a device, which has neither memory nor, perhaps, a driver.
TensorMap tile_map(const TiledTensor& tensor, DType type, int tokens, int ordinal);

}  // namespace gdn_cuda::jit
