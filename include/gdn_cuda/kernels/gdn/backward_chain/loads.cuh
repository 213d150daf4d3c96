// The loads of gdn/backward_chain: each chunk's tokens by TMA, and what gdn/backward_prepare has stored of it.
#pragma once

#include <gdn_cuda/kernels/chunked/cache.cuh>
#include <gdn_cuda/kernels/gdn/backward_chain/plan.cuh>

namespace gdn_cuda::gdn {

template <BackwardChainConfig kConfig>
struct BackwardChainLoads {
    using Plan = BackwardChainPlan<kConfig>;
    static constexpr ChunkedConfig kBlock = kConfig.block();
    static constexpr int kTile = sizeof(SwizzledTile);

    Plan& shared;
    const BackwardChainArgs& args;
    const ChunkedWork& work = shared.work;

    // By a warpgroup; two of its warps have something to do.
    __device__ __forceinline__ void run() const {
        const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
        if (warp == 0 && threadIdx.x == 0) load_chunks();
        if (warp == 1 && has_tail<kBlock>(work.tokens, tail_chunk<kBlock>(work.tokens))) clear_tail();
    }

  private:
    __device__ __forceinline__ void load_chunks() const {
        const auto* from = static_cast<const PreparedChunk*>(args.to.prepared) +
                           first_prepared(args, args.to, work.head, work.sequence, work.tokens.start);
#pragma unroll 1
        for (int chunk = 0; chunk < work.tokens.chunks; ++chunk) {
            const PipelineStage<kBlock.stages> current(chunk);
            Barrier& full = barrier(shared.stage_full[current.index]);
            barrier(shared.stage_empty[current.index]).wait(current.parity ^ 1);
            load_tokens(chunk, current.index, has_tail<kBlock>(work.tokens, chunk) ? barrier(shared.tail_full) : full);
            load_prepared(from[in_time<kBlock>(work.tokens, chunk)], current.index, full);
        }
    }
    __device__ __forceinline__ void load_tokens(int chunk, int at, Barrier& full) const {
        auto& stage = shared.stages[at];
        const int token = first_token<kBlock>(work.tokens, chunk), batch = batch_of(args, work);
        full.arrive_and_expect_tx(((1 + Plan::kQueries) * kBlock.key_tiles() + kBlock.value_groups) * kTile);
        const auto load = [&](SwizzledTile* tiles, int count, const TensorMap& map, int first_element, int head) {
            for (int i = 0; i < count; ++i)
                tma_load(tiles[i].bytes, map, {first_element + i * kTileElements, head, token, batch}, full);
        };
        load(stage.key, kBlock.key_tiles(), args.key, 0, work.key_head);
        load(stage.value, kBlock.value_groups, args.value, work.first_value, work.head);
        if constexpr (Plan::kQueries) load(stage.query, kBlock.key_tiles(), args.query, 0, work.key_head);
    }
    __device__ __forceinline__ void load_prepared(const PreparedChunk& from, int at, Barrier& full) const {
        using Copy = cute::SM90_BULK_COPY_G2S;
        auto& stage = shared.stages[at];
        auto* mbarrier = reinterpret_cast<uint64_t*>(&full);
        constexpr int kFactors = sizeof(typename Plan::Factors);
        full.arrive_and_expect_tx((2 + Plan::kQueries) * kTile + kFactors);
        Copy::copy(&from.scalars, mbarrier, &shared.factors[at], kFactors);
        Copy::copy(&from.inverse, mbarrier, &stage.inverse, kTile);
        Copy::copy(&from.inverse_residual, mbarrier, &stage.inverse_residual, kTile);
        if constexpr (Plan::kQueries) Copy::copy(&from.scores, mbarrier, &stage.scores, kTile);
    }
    __device__ __forceinline__ void clear_tail() const {
        clear_tail_tokens<kBlock>(shared, work.tokens, shared.tail_full);
        const int stage = PipelineStage<kBlock.stages>(tail_chunk<kBlock>(work.tokens)).index;
        if (threadIdx.x % 32 == 0) barrier(shared.stage_full[stage]).arrive();
    }
};

}  // namespace gdn_cuda::gdn
