// Cached chunks from blocks that prepare to blocks that own rows of the state, in gdn/prefill_ahead: matrices and factors pass
// through global memory, by bulk copies; a counter for each chunk says that it is there.
#pragma once

#include <gdn_cuda/kernels/chunked/ahead/plan.cuh>
#include <gdn_cuda/kernels/chunked/cache.cuh>
#include <gdn_cuda/kernels/chunked/outputs.cuh>

namespace gdn_cuda::gdn {

// A pair's cached chunks and counters; chunks are counted from the sequence's first.
template <ChunkedConfig kConfig>
struct CachedChunks {
    CachedChunk<kConfig>* chunks;
    unsigned* counters;

    __device__ __forceinline__ CachedChunks(const PrefillAheadArgs& args, int pair)
        : chunks(static_cast<CachedChunk<kConfig>*>(args.cached) + static_cast<i64>(pair) * args.window - args.first_chunk),
          counters(args.cached_count + static_cast<i64>(pair) * args.most_chunks) {}
};

// By one warp of a block that prepares.
template <ChunkedConfig kConfig>
struct CachedChunkStore {
    using Plan = PreparerPlan<kConfig>;

    Plan& shared;
    const CachedChunks<kConfig> to;
    const int first, stride;  // in chunks

    __device__ __forceinline__ void run() {
        auto& block = shared.block;
        const int lane = threadIdx.x % 32;
#pragma unroll 1
        for (int chunk = 0; chunk < block.work.tokens.chunks; ++chunk) {
            const PipelineStage<kConfig.stages> current(chunk);
            barrier(block.matrices_full[current.index]).wait(current.parity);
            if (lane == 0) store(chunk, current.index);
            __syncwarp();
            if (lane < kConfig.value_groups * 4) barrier(block.stage_empty[current.index]).arrive();
        }
    }

  private:
    __device__ __forceinline__ void store(int chunk, int stage) {
        auto& block = shared.block;
        const int slot = chunk % kConfig.slots(), at = first + chunk * stride;
        auto& cached = to.chunks[at];
        const auto cancels = block.cancels[slot];
        const unsigned columns = columns_that_cancel(cancels);
        shared.scalars.decay = block.decay[stage];
        shared.scalars.cancels = cancels;
        cutlass::arch::fence_view_async_shared();
        start_store<kConfig>(cached, block.matrices[slot], block.factors[stage], columns != 0);
        cute::SM90_BULK_COPY_S2G::copy(&shared.scalars.decay, &cached.scalars.decay, 16);
        cute::tma_store_arrive();
        wait_for_bulk_stores();
        red_release(to.counters + at, 1 + 2 * columns);
    }
};

// By three warps of a block that owns rows of the state.
template <ChunkedConfig kConfig>
struct AheadLoader {
    using Plan = OwnerPlan<kConfig>;
    using Stage = typename Plan::Stage;
    static constexpr int kWarps = 3, kTile = sizeof(SwizzledTile);

    Plan& shared;
    const ChunkedArgs& args;
    const CachedChunks<kConfig> from;
    const int first;  // chunk of the sequence
    const ChunkedWork& work = shared.work;

    __device__ __forceinline__ void run(int warp) {
        if (threadIdx.x % 32 == 0) load_chunks(warp);
        __syncwarp();
        if (warp == 1 && has_tail<kConfig>(work.tokens, tail_chunk<kConfig>(work.tokens))) clear_tail();
    }

  private:
    __device__ __forceinline__ void load_chunks(int warp) {
#pragma unroll 1
        for (int chunk = 0; chunk < work.tokens.chunks; ++chunk) {
            const PipelineStage<kConfig.stages> current(chunk);
            auto& stage = shared.stages[current.index];
            Barrier& full = barrier(shared.stage_full[current.index]);
            unsigned columns = 0;
            if (warp == 0) columns = wait_for_chunk(chunk);
            barrier(shared.stage_empty[current.index]).wait(current.parity ^ 1);
            if (warp == 0)
                load_cached(chunk, current.index, columns, full);
            else if (warp == 1)
                load_keys_and_values(chunk, stage, has_tail<kConfig>(work.tokens, chunk) ? barrier(shared.tail_full) : full);
            else
                load_queries(chunk, stage, full);
        }
    }
    __device__ __forceinline__ unsigned wait_for_chunk(int chunk) const {
        return wait_for_count(from.counters + first + chunk, 1) / 2;
    }
    __device__ __forceinline__ void load_cached(int chunk, int at, unsigned columns, Barrier& full) {
        using Copy = cute::SM90_BULK_COPY_G2S;
        constexpr int kScalars = sizeof(CachedFactors<kConfig>);
        const auto& cached = from.chunks[first + chunk];
        auto& stage = shared.stages[at];
        auto* mbarrier = reinterpret_cast<uint64_t*>(&full);
        fence_proxy_async_global();
        if (columns != 0) [[unlikely]] {
            const PipelineStage<kConfig.stages> before(chunk - 2);
            if (chunk >= 2) barrier(shared.stage_empty[before.index]).wait(before.parity);
            full.expect_transaction(kTile);
            Copy::copy(&cached.inverse_residual, mbarrier, &shared.inverse_residual[chunk % 2], kTile);
        }
        full.arrive_and_expect_tx(2 * kTile + kScalars);
        Copy::copy(&cached.scalars, mbarrier, &shared.factors[at], kScalars);
        Copy::copy(&cached.inverse, mbarrier, &stage.inverse, kTile);
        Copy::copy(&cached.scores, mbarrier, &stage.scores, kTile);
    }
    __device__ __forceinline__ void load_keys_and_values(int chunk, Stage& stage, Barrier& full) {
        full.arrive_and_expect_tx((kConfig.key_tiles() + 1) * kTile);
        load_tiles(stage.key, args.key, chunk, full);
        tma_load(stage.value[0].bytes, args.value,
                 {work.first_value, work.head, first_token<kConfig>(work.tokens, chunk), batch_of(args, work)}, full);
    }
    __device__ __forceinline__ void load_queries(int chunk, Stage& stage, Barrier& full) {
        full.arrive_and_expect_tx(kConfig.key_tiles() * kTile);
        load_tiles(stage.query, args.query, chunk, full);
    }
    __device__ __forceinline__ void load_tiles(SwizzledTile* tiles, const TensorMap& map, int chunk, Barrier& full) {
#pragma unroll
        for (int i = 0; i < kConfig.key_tiles(); ++i)
            tma_load(tiles[i].bytes, map,
                     {i * kTileElements, work.key_head, first_token<kConfig>(work.tokens, chunk), batch_of(args, work)}, full);
    }
    __device__ __forceinline__ void clear_tail() {
        const int stage = PipelineStage<kConfig.stages>(tail_chunk<kConfig>(work.tokens)).index;
        clear_tail_tokens<kConfig>(shared, work.tokens, shared.tail_full);
        if (threadIdx.x % 32 == 0) barrier(shared.stage_full[stage]).arrive();
    }
};

// By one thread: stores the outputs' tile of each chunk, which other warps have written.
template <ChunkedConfig kConfig>
__device__ __forceinline__ void store_outputs(OwnerPlan<kConfig>& shared, const ChunkedArgs& args) {
#pragma unroll 1
    for (int chunk = 0; chunk < shared.work.tokens.chunks; ++chunk) {
        barrier(shared.output_full).wait(chunk & 1);
        if (!shared.is_stored) {
            cutlass::arch::fence_view_async_shared();
            start_tile_store<kConfig>(args, shared.work, chunk, 0, shared.output[0]);
            cute::tma_store_wait<0>();
        }
        barrier(shared.output_empty).arrive();
    }
}

}  // namespace gdn_cuda::gdn
