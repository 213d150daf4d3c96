// The schedule of a block that prepares some of the chunks of a sequence and head for other blocks.
#pragma once

#include <gdn_cuda/kernels/chunked/run.cuh>

namespace gdn_cuda::gdn {

// Every ahead.preparers-th chunk of a pair from `first` on, among those from ahead.first_chunk on.
template <ChunkedConfig kConfig, class Ahead>
struct PreparerSchedule {
    ChunkedPlan<kConfig>& shared;
    const ChunkedArgs& args;
    const Ahead& ahead;
    const int pair, first;

    __device__ __forceinline__ bool start() const {
        ChunkedBlock<kConfig> block(args, pair, 0);
        bool decays_slowly;
        if (!block.takes_sequence() || !block.is_taken(decays_slowly, ahead.first_chunk == 0)) return false;
        const int last = ahead.last_chunk(pair, block.chunks);
        if (block.place != Place::run || first >= last) return false;
        if (threadIdx.x == 0) {
            block.plan_outputs(shared.work, first, last);
            shared.work.tokens.chunks = (last - first + ahead.preparers - 1) / ahead.preparers;
            shared.work.tokens.chunk_stride = ahead.preparers * kChunk;
            for (auto& word : shared.tiles_empty) barrier(word).init(2 * 4);
            set_barriers<true>(shared);
        }
        clear_matrices_and_sync(shared);
        return true;
    }
    __device__ __forceinline__ const ChunkedWork& work() const { return shared.work; }
    template <RoleName>
    __device__ __forceinline__ static bool next() {
        return false;
    }
};

}  // namespace gdn_cuda::gdn
