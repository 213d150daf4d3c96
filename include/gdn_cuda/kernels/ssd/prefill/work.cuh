// What a block has to do: some heads of a group, of one sequence.
#pragma once

#include <gdn_cuda/kernels/common/tma.cuh>
#include <gdn_cuda/kernels/common/varlen.cuh>
#include <gdn_cuda/kernels/hopper/pipeline.cuh>
#include <gdn_cuda/kernels/ssd/prefill_plan.cuh>

namespace gdn_cuda::ssd {

__device__ __forceinline__ SsdWork work_of_block(const SsdArgs& args, int heads_of_block) {
    const int per_group = args.heads / args.groups, blocks = (per_group + heads_of_block - 1) / heads_of_block;
    const int block = static_cast<int>(blockIdx.x), inside = block % blocks * heads_of_block;
    const int group = block / blocks, sequence = static_cast<int>(blockIdx.y);
    const Span span = span_of(args.cu_seqlens, sequence, args.tokens);
    return {.sequence = sequence,
            .batch = args.cu_seqlens.data != nullptr ? 0 : sequence,
            .group = group,
            .first_head = group * per_group + inside,
            .heads = min(heads_of_block, per_group - inside),
            .start = static_cast<int>(span.start),
            .length = span.length,
            .chunks = (span.length + kChunk - 1) / kChunk};
}
__device__ __forceinline__ int tokens_in(const SsdWork& work, int chunk) {
    return min(kChunk, work.length - chunk * kChunk);
}
// Whether what follows the sequence in its last chunk is another one's.
__device__ __forceinline__ bool has_tail(const SsdArgs& args, const SsdWork& work, int chunk) {
    return args.cu_seqlens.data != nullptr && tokens_in(work, chunk) < kChunk;
}
__device__ __forceinline__ TileAt tile_of(const SsdWork& work, int chunk, int head) {
    return {0, head, work.start + chunk * kChunk, work.batch};
}

template <SsdConfig kConfig>
__device__ __forceinline__ typename SsdPlan<kConfig>::Stage& stage_at(SsdPlan<kConfig>& shared, int index) {
    return reinterpret_cast<typename SsdPlan<kConfig>::Stage&>(shared.stages[index]);
}

}  // namespace gdn_cuda::ssd
