// gdn/chunk_cumsum: inclusive fp32 sum of the gates over the tokens of each chunk, restarting at every chunk and sequence.
// Gates below -128 count as -128.
//
// A block stages one chunk of a few heads in shared memory: accesses to global memory are coalesced whether tokens or heads are
// contiguous. One thread per head adds its tokens in order, so the bits of a chunk do not depend on where it is in the batch.
//
// Bound: memory, 6 bytes per element for bf16; at usual sizes (8192 tokens of 32 heads: 1.5 MB) the launch. The share of a
// copy's bandwidth was not measured.
#pragma once

#include <gdn_cuda/kernels/common/varlen.cuh>
#include <gdn_cuda/kernels/gdn/chunk_cumsum_plan.cuh>

namespace gdn_cuda::gdn {

// Calls visit(token, head) for each element of a tile. Adjacent threads have adjacent heads or, without `along_heads`, tokens.
template <ChunkCumsumConfig kConfig, class Visitor>
__device__ __forceinline__ void for_tile(bool along_heads, int tokens, int heads, Visitor&& visit) {
    for (int i = threadIdx.x; i < kConfig.chunk * kConfig.heads_per_block; i += kConfig.threads()) {
        const int token = along_heads ? i / kConfig.heads_per_block : i % kConfig.chunk;
        const int head = along_heads ? i % kConfig.heads_per_block : i / kConfig.chunk;
        if (token < tokens && head < heads) visit(token, head);
    }
}

template <ChunkCumsumConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads()) chunk_cumsum(const __grid_constant__ ChunkCumsumArgs args) {
    __shared__ ChunkCumsumSharedPlan<kConfig> shared;
    using T = Storage<kConfig.io>;

    const ChunkPlace place = place_of_chunk(args.cu_seqlens, args.sequences, args.tokens, kConfig.chunk, blockIdx.x);
    if (place.sequence < 0) return;
    const int first_head = blockIdx.y * kConfig.heads_per_block;
    const int heads = min(kConfig.heads_per_block, args.heads - first_head);
    const int tokens = min(kConfig.chunk, place.length - place.first);
    const i64 first_token = place.start + place.first;

    const T* input = static_cast<const T*>(args.input) + place.sequence * args.in_batch + first_token * args.in_token +
                     first_head * args.in_head;
    for_tile<kConfig>(args.in_head == 1, tokens, heads, [&](int token, int head) {
        shared.tile[head][token] = at_least(to_float(input[token * args.in_token + head * args.in_head]), kLowestGate);
    });
    __syncthreads();

    if (threadIdx.x < heads) {
        float sum = 0.f;
        for (int token = 0; token < tokens; ++token) {
            sum += shared.tile[threadIdx.x][token];
            shared.tile[threadIdx.x][token] = sum;
        }
    }
    __syncthreads();

    float* output = args.output + place.sequence * args.out_batch + first_token * args.out_token + first_head * args.out_head;
    for_tile<kConfig>(args.out_head == 1, tokens, heads, [&](int token, int head) {
        output[token * args.out_token + head * args.out_head] = shared.tile[head][token];
    });
}

}  // namespace gdn_cuda::gdn
