// The loads of gdn/backward_chain: a chunk's tokens by TMA, and what gdn/backward_prepare or gdn/kda_prepare has stored of it.
#pragma once

#include <gdn_cuda/kernels/gdn/backward_chain/handover.cuh>

namespace gdn_cuda::gdn {

template <int kCount>
__device__ __forceinline__ void load_tiles(SwizzledTile (&tiles)[kCount], const TensorMap& map, const TileAt& first,
                                           Barrier& full) {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
        tma_load(tiles[i].bytes, map, {first.element + i * kTileElements, first.head, first.token, first.batch}, full);
}
template <class T>
__device__ __forceinline__ void load_bulk(T& to, const T& from, Barrier& full) {
    cute::SM90_BULK_COPY_G2S::copy(&from, reinterpret_cast<uint64_t*>(&full), &to, sizeof(T));
}

template <bool kQueries, class Stage, class Factors>
__device__ __forceinline__ void load_prepared(Stage& stage, Factors& factors, const PreparedChunk& from, Barrier& full) {
    full.arrive_and_expect_tx((2 + kQueries) * static_cast<int>(sizeof(SwizzledTile)) + static_cast<int>(sizeof(from.scalars)));
    load_bulk(factors, from.scalars, full);
    if constexpr (kQueries) load_bulk(stage.scores, from.scores, full);
    load_bulk(stage.inverse, from.inverse, full);
    load_bulk(stage.inverse_residual, from.inverse_residual, full);
}
// The residual of P is left in global memory (load_scores_residual).
template <bool kQueries, class Stage, class Factors>
__device__ __forceinline__ void load_prepared(Stage& stage, Factors& factors, const KdaTrainingRecord& from, Barrier& full) {
    constexpr int kTiles = 2 * kKdaTiles + 2 + (kQueries ? kKdaTiles + 1 : 0);
    full.arrive_and_expect_tx(kTiles * static_cast<int>(sizeof(SwizzledTile)) + static_cast<int>(sizeof(factors)));
    load_bulk(factors, from.factors, full);
    if constexpr (kQueries) {
        load_bulk(stage.key_out, from.key_out, full);
        load_bulk(stage.scores, from.scores[0], full);
        load_bulk(stage.query, from.query_in, full);
        load_bulk(stage.key_in, from.key_in, full);
    } else {
        load_bulk(stage.key_in, from.key_in, full);
        load_bulk(stage.key_out, from.key_out, full);
    }
    load_bulk(stage.inverse, from.inverse[0], full);
    load_bulk(stage.inverse_residual, from.inverse[1], full);
}

// By one thread.
template <BackwardChainConfig kConfig, class Prepared>
__device__ __forceinline__ void load_chunk(BackwardChainPlan<kConfig>& shared, const BackwardChainArgs& args,
                                           const ChunkedWork& work, int chunk, const Prepared& from) {
    constexpr ChunkedConfig kBlock = kConfig.block();
    constexpr bool kQueries = kConfig.direction == Direction::backward;
    constexpr int kTiles = kConfig.channels ? 1 : 1 + (1 + kQueries) * kBlock.key_tiles();
    const PipelineStage<kBlock.stages> current(chunk);
    auto& stage = shared.stages[current.index];
    Barrier &full = barrier(shared.stage_full[current.index]),
            &rows = has_tail<kBlock>(work.tokens, chunk) ? barrier(shared.tail_full) : full;
    const int token = first_token<kBlock>(work.tokens, chunk), batch = batch_of(args, work);
    barrier(shared.stage_empty[current.index]).wait(current.parity ^ 1);
    rows.arrive_and_expect_tx(kTiles * static_cast<int>(sizeof(SwizzledTile)));
    if constexpr (!kConfig.channels) load_tiles(stage.key, args.key, {0, work.key_head, token, batch}, rows);
    tma_load(stage.value[0].bytes, args.value, {work.first_value, work.head, token, batch}, rows);
    if constexpr (!kConfig.channels && kQueries) load_tiles(stage.query, args.query, {0, work.key_head, token, batch}, rows);
    load_prepared<kQueries>(stage, shared.factors[current.index], from, full);
}
template <BackwardChainConfig kConfig>
__device__ __forceinline__ void load_chunks(BackwardChainPlan<kConfig>& shared, const BackwardChainArgs& args,
                                            const ChunkedWork& work) {
    using Prepared = typename PreparedForChain<kConfig.channels>::Chunk;
    const auto* from = static_cast<const Prepared*>(args.to.prepared) + first_prepared(args, work);
#pragma unroll 1
    for (int chunk = 0; chunk < work.tokens.chunks; ++chunk)
        load_chunk<kConfig>(shared, args, work, chunk, from[in_time<kConfig.block()>(work.tokens, chunk)]);
}

// By a warp: zeroes the rows of tokens past the sequence's end.
template <int kCount>
__device__ __forceinline__ void clear_rows(SwizzledTile (&tiles)[kCount], int count) {
#pragma unroll 1
    for (int i = threadIdx.x % 32; i < (kChunk - count) * kCount * 8; i += 32) {
        const int row = count + i / (kCount * 8), vector = i % (kCount * 8);
        store_shared(row_vector(tile_row(tiles[vector / 8].bytes, row), vector % 8), uint4{});
    }
}

// By a warp, for the chunk in which the sequence ends: clears what follows it there, before others see the chunk. Records end
// with zeros.
template <BackwardChainConfig kConfig>
__device__ __forceinline__ void clear_tail(BackwardChainPlan<kConfig>& shared, const ChunkedWork& work, int chunk) {
    constexpr ChunkedConfig kBlock = kConfig.block();
    const int count = tokens_in<kBlock>(work.tokens, chunk);
    const PipelineStage<kBlock.stages> at(chunk);
    barrier(shared.tail_full).wait(0);
    if constexpr (!kConfig.channels) {
        clear_rows(shared.stages[at.index].key, count);
        if constexpr (kConfig.direction == Direction::backward) clear_rows(shared.stages[at.index].query, count);
    }
    clear_rows(shared.stages[at.index].value, count);
    cutlass::arch::fence_view_async_shared();
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier(shared.stage_full[at.index]).arrive();
}

}  // namespace gdn_cuda::gdn
