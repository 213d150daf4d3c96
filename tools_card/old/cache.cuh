// Cached T, P and factors of a chunk, which helper roles have computed, in global memory for a second use.
//
// A block that takes several passes over its segment stores them in the first pass, by a thread of a value warpgroup; in the
// others a loader takes the place of the helper roles. gdn/prefill_ahead passes them from block to block
// (chunked/ahead/cache.cuh).
#pragma once

#include <gdn_cuda/kernels/chunked/tokens.cuh>
#include <gdn_cuda/kernels/hopper/counters.cuh>

namespace gdn_cuda::gdn {

// The columns of T that cancel, as bits.
template <class CancelFlags>
__device__ __forceinline__ unsigned columns_that_cancel(const CancelFlags& cancels) {
    unsigned columns = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) columns |= static_cast<unsigned>(cancels.column[i]) << i;
    return columns;
}

// By one thread: starts the copies of a chunk's matrices and factors.
template <ChunkedConfig kConfig>
__device__ __forceinline__ void start_store(CachedChunk<kConfig>& cached,
                                            const typename ChunkedPlan<kConfig>::Matrices& matrices,
                                            const typename ChunkedPlan<kConfig>::Factors& factors, bool cancels) {
    using Copy = cute::SM90_BULK_COPY_S2G;
    constexpr int kTile = sizeof(SwizzledTile);
    Copy::copy(&matrices.inverse, &cached.inverse, kTile);
    Copy::copy(&matrices.scores, &cached.scores, kTile);
    if (cancels) Copy::copy(&matrices.inverse_residual, &cached.inverse_residual, kTile);
    Copy::copy(&factors, &cached.scalars, sizeof(factors));
}

// By one thread: starts caching a chunk that helper roles have computed.
template <ChunkedConfig kConfig>
__device__ __forceinline__ void start_cached_store(const ChunkedPlan<kConfig>& shared, int chunk) {
    const int stage = PipelineStage<kConfig.stages>(chunk).index, slot = chunk % kConfig.slots();
    auto& cached = static_cast<CachedChunk<kConfig>*>(shared.work.cache.chunks)[in_time<kConfig>(shared.work.tokens, chunk)];
    const auto cancels = shared.cancels[slot];
    cutlass::arch::fence_view_async_shared();
    start_store<kConfig>(cached, shared.matrices[slot], shared.factors[stage], columns_that_cancel(cancels) != 0);
    cute::tma_store_arrive();
    cached.scalars.decay = shared.decay[stage];
    cached.scalars.cancels = cancels;
}

// By one warp, which then arrives at the full barrier in place of the loads: the tail chunk's tokens past the end, as the
// inverse role clears them elsewhere.
template <ChunkedConfig kConfig, class Plan>
__device__ __forceinline__ void clear_tail_tokens(Plan& shared, const PassTokens& tokens, unsigned long long& full) {
    const int chunk = tail_chunk<kConfig>(tokens), lane = threadIdx.x % 32;
    barrier(full).wait(0);
    auto&& stage = tiles_of<kConfig>(shared, chunk, PipelineStage<kConfig.stages>(chunk).index);
    clear_tokens_from<kConfig, 32>(stage, lane, tokens_in<kConfig>(tokens, chunk));
    cutlass::arch::fence_view_async_shared();
    __syncwarp();
}

// By the four warps of the scores role: a warp each for cached chunks, values, queries and keys.
template <ChunkedConfig kConfig>
struct CachedChunkLoader {
    using Plan = ChunkedPlan<kConfig>;
    using Cached = CachedChunk<kConfig>;
    enum Producer : int { chunks, values, queries, keys };
    static constexpr int kTile = sizeof(SwizzledTile);

    Plan& shared;
    const ChunkedArgs& args;
    const ChunkedWork& work = shared.work;

    __device__ __forceinline__ void run(int warp) {
        if (threadIdx.x % 32 == 0) {
            cutlass::arch::fence_view_async_shared();  // earlier passes wrote and read what is loaded now
            warp == chunks ? load_cached() : load_tokens(warp);
        }
        __syncwarp();
        if (warp == keys && has_tail<kConfig>(work.tokens, tail_chunk<kConfig>(work.tokens))) clear_tail();
    }

  private:
    // Loaded a chunk ahead, as the flags say whether inverse_residual is copied.
    struct Scalars {
        float decay;
        typename Plan::CancelFlags cancels;

        __device__ __forceinline__ explicit Scalars(const Cached& cached)
            : decay(cached.scalars.decay), cancels(cached.scalars.cancels) {}
    };
    __device__ __forceinline__ void load_cached() {
        using Copy = cute::SM90_BULK_COPY_G2S;
        constexpr int kSlots = kConfig.slots();
        const auto* from = static_cast<const Cached*>(work.cache.chunks);
        fence_proxy_async_global();
        Scalars next(from[0]);
#pragma unroll 1
        for (int chunk = 0; chunk < work.tokens.chunks; ++chunk) {
            const Scalars now = next;
            if (chunk + 1 < work.tokens.chunks) next = Scalars(from[chunk + 1]);
            const PipelineStage<kConfig.stages> current(chunk), before(chunk - kSlots);
            if (chunk >= kSlots) barrier(shared.stage_empty[before.index]).wait(before.parity);
            const Cached& cached = from[chunk];
            auto& matrices = shared.matrices[chunk % kSlots];
            auto& factors = shared.factors[current.index];
            Barrier& matrices_full = barrier(shared.matrices_full[current.index]);
            auto* mbarrier = reinterpret_cast<uint64_t*>(&matrices_full);
            const bool cancels = columns_that_cancel(now.cancels) != 0, scores = chunk >= work.tokens.first_output;
            shared.decay[current.index] = now.decay;
            shared.cancels[chunk % kSlots] = now.cancels;
            matrices_full.arrive_and_expect_tx((1 + cancels + scores) * kTile + static_cast<int>(sizeof(factors)));
            Copy::copy(&cached.inverse, mbarrier, &matrices.inverse, kTile);
            Copy::copy(&cached.scalars, mbarrier, &factors, sizeof(factors));
            if (cancels) Copy::copy(&cached.inverse_residual, mbarrier, &matrices.inverse_residual, kTile);
            if (scores) Copy::copy(&cached.scores, mbarrier, &matrices.scores, kTile);
        }
    }
    __device__ __forceinline__ void load_tokens(int which) {
        const TensorMap& map = which == values ? args.value : which == queries ? args.query : args.key;
        const int head = which == values ? work.head : work.key_head, first_element = which == values ? work.first_value : 0,
                  count = which == values ? kConfig.value_groups : kConfig.key_tiles(), batch = batch_of(args, work);
#pragma unroll 1
        for (int chunk = 0; chunk < work.tokens.chunks; ++chunk) {
            const PipelineStage<kConfig.stages> current(chunk);
            barrier(shared.stage_empty[current.index]).wait(current.parity ^ 1);
            auto&& stage = tiles_of<kConfig>(shared, chunk, current.index);
            Barrier& matrices_full = barrier(shared.matrices_full[current.index]);
            if (which == queries && chunk < work.tokens.first_output) {
                matrices_full.arrive();
                continue;
            }
            SwizzledTile* tiles = which == values ? stage.value : which == queries ? stage.query : stage.key;
            Barrier& full = which != queries && has_tail<kConfig>(work.tokens, chunk)
                                ? barrier(shared.stage_full[current.index])
                                : matrices_full;
            const int token = first_token<kConfig>(work.tokens, chunk);
            full.arrive_and_expect_tx(count * kTile);
            for (int i = 0; i < count; ++i)
                tma_load(tiles[i].bytes, map, {first_element + i * kTileElements, head, token, batch}, full);
        }
    }
    __device__ __forceinline__ void clear_tail() {
        const int stage = PipelineStage<kConfig.stages>(tail_chunk<kConfig>(work.tokens)).index;
        clear_tail_tokens<kConfig>(shared, work.tokens, shared.stage_full[stage]);
        if (threadIdx.x % 32 != 0) return;
        barrier(shared.matrices_full[stage]).arrive();  // for keys
        barrier(shared.matrices_full[stage]).arrive();  // for values
    }
};

}  // namespace gdn_cuda::gdn
