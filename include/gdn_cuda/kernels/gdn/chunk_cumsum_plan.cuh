// Configuration, shared memory and arguments of gdn/chunk_cumsum, for host and device.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda::gdn {

// Lower gates are clamped to this: their exponential is 0 in fp32 anyway, and the sum keeps its precision for later gates. It
// is a power of two, so that sums of resets are exact.
constexpr float kLowestGate = -128.f;

struct ChunkCumsumConfig {
    DType io;   // the input's; the output is fp32
    int chunk;  // tokens per chunk
    int heads_per_block;

    constexpr bool operator==(const ChunkCumsumConfig&) const = default;
    GDN_HOST_DEVICE constexpr int threads() const { return heads_per_block * 8; }

    GDN_FIELDS(io, chunk, heads_per_block)
};

template <ChunkCumsumConfig kConfig>
struct ChunkCumsumSharedPlan {
    float tile[kConfig.heads_per_block][kConfig.chunk + 1];  // + 1: column reads are free of bank conflicts
};

struct ChunkCumsumArgs {
    const void* input;
    float* output;
    i64 in_batch, in_token, in_head, out_batch, out_token, out_head;  // strides in elements
    int sequences, tokens, heads;
    Tagged cu_seqlens;
};

}  // namespace gdn_cuda::gdn
