// The scores role: one warpgroup that runs ahead. For each chunk it issues the TMA loads, derives factors of tokens from gates
// and norms, and forms P = q k^T, decayed and masked. Norms of keys come from the inverse role, which has their squares on the
// diagonal of k k^T.
//
// While the products of a chunk run, an iteration issues what later chunks need: TMA for the next chunk's tiles, and loads into
// registers of the gates and betas of the chunk after that.
#pragma once

#include <gdn_cuda/kernels/chunked/cache.cuh>
#include <gdn_cuda/kernels/chunked/factors.cuh>
#include <gdn_cuda/kernels/chunked/persistent.cuh>
#include <gdn_cuda/kernels/chunked/summary.cuh>
#include <gdn_cuda/kernels/chunked/token_products.cuh>

namespace gdn_cuda::gdn {

// kStrided: the block prepares every few chunks of a segment for other blocks, and needs no values (prefill_ahead.cuh).
template <ChunkedConfig kConfig, bool kStrided = false>
struct ScoresRole : Lane {
    using Plan = ChunkedPlan<kConfig>;
    static constexpr int kScalarWarp = 0;  // it has the fewest scores below the diagonal

    Plan& shared;
    const ChunkedArgs& args;
    int work_tile = 0;  // the next chunk's, where a block takes several

    __device__ __forceinline__ ScoresRole(Plan& shared, const ChunkedArgs& args) : shared(shared), args(args) { find_lane(); }

    __device__ __forceinline__ const auto& work_of(int work_tile) const {
        if constexpr (kConfig.persistent)
            return slot_at(shared.work_tiles, work_tile);
        else
            return shared.work;
    }
    // A chunk's work tile, given that of the chunk before it.
    __device__ __forceinline__ int work_tile_of(int chunk, int work_tile_before) const {
        if constexpr (kConfig.persistent)
            return work_tile_before + ends_before(slot_at(shared.work_tiles, work_tile_before), chunk);
        return 0;
    }

    // By lane 0 of every warp but kScalarWarp.
    __device__ __forceinline__ void load_tiles(int chunk, int work_tile, const PipelineStage<kConfig.stages>& current) {
        const auto& work = work_of(work_tile);
        if (chunk >= work.tokens.chunks || lane != 0 || warp == kScalarWarp) return;
        auto&& stage = tiles_of<kConfig>(shared, chunk, current.index);
        Barrier& full = barrier(shared.stage_full[current.index]);
        const bool value = warp == 1, query = warp == 2;
        if (kStrided && value) return full.arrive();
        SwizzledTile* tiles = value ? stage.value : query ? stage.query : stage.key;
        const TensorMap& map = value ? args.value : query ? args.query : args.key;
        const int head = value ? work.head : work.key_head, first_element = value ? work.first_value : 0;
        const int token = first_token<kConfig, kStrided>(work.tokens, chunk);
        const int batch = batch_of(args, work);
        const int count = value ? kConfig.value_groups : kConfig.key_tiles();
        full.arrive_and_expect_tx(count * static_cast<int>(sizeof(SwizzledTile)));
        tma_load(tiles[0].bytes, map, {first_element, head, token, batch}, full);
        if (count == 2) tma_load(tiles[1].bytes, map, {first_element + kTileElements, head, token, batch}, full);
    }
    // Long keys: by warp 3, and queries and values by warps 2 and 1.
    __device__ __forceinline__ void load_tiles(const TensorMap& map, SwizzledTile* tiles, int count, int first_element,
                                               int head, int chunk, unsigned long long& word) const {
        if (lane != 0) return;
        Barrier& full = barrier(word);
        full.arrive_and_expect_tx(count * static_cast<int>(sizeof(SwizzledTile)));
        const int token = first_token<kConfig>(shared.work.tokens, chunk), batch = batch_of(args, shared.work);
#pragma unroll 1
        for (int tile = 0; tile < count; ++tile)
            tma_load(tiles[tile].bytes, map, {first_element + tile * kTileElements, head, token, batch}, full);
    }
    __device__ __forceinline__ void load_keys(int chunk) const {
        if (warp != 3 || chunk >= shared.work.tokens.chunks) return;
        const PipelineStage<kConfig.stages> at(chunk);
        load_tiles(args.key, shared.keys[at.index], kConfig.key_tiles(), 0, shared.work.key_head, chunk,
                   shared.stage_full[at.index]);
    }
    __device__ __forceinline__ void load_rows(int chunk) const {
        if (warp == kScalarWarp || warp == 3 || chunk >= shared.work.tokens.chunks) return;
        const PipelineStage<kConfig.row_stages()> at(chunk);
        auto& rows = shared.rows[at.index];
        if (warp == 1)
            load_tiles(args.value, rows.value, kConfig.value_groups, shared.work.first_value, shared.work.head, chunk,
                       shared.rows_full[at.index]);
        else
            load_tiles(args.query, rows.query, kConfig.key_tiles(), 0, shared.work.key_head, chunk, shared.rows_full[at.index]);
    }
    __device__ __forceinline__ void issue_loads(int chunk, ScalarStream& gates, ScalarStream& betas) const {
        for (RawElement* raw : {gates.raw, betas.raw})
            raw[0] = raw[1] = {};  // by all warps: else the compiler copies what is loaded, and waits for it
        if (kConfig.persistent && warp != kScalarWarp) return;
        const int chunk_tile = work_tile_of(chunk, work_tile);
        const auto& work = work_of(chunk_tile);
        if (warp != kScalarWarp || chunk >= work.tokens.chunks) return;
        if constexpr (kConfig.persistent)
            if (chunk_tile != work_tile || chunk == 0) [[unlikely]] {
                gates.start_at(work.gates);
                betas.start_at(work.betas);
            }
        const int count = tokens_in<kConfig, kStrided>(work.tokens, chunk), to_next = chunk_stride<kStrided>(work.tokens);
        gates.issue_loads(count, to_next);
        betas.issue_loads(count, to_next);
    }
    // Stores the scalars loaded for this chunk. Tokens past the end have zeros: no decay, no update.
    __device__ __forceinline__ void store_scalars(int chunk, const PipelineStage<kConfig.stages>& current, ScalarStream& gates,
                                                  ScalarStream& betas) {
        if (warp != kScalarWarp || chunk >= work_of(work_tile).tokens.chunks) return;
        auto& factors = shared.factors[current.index];
        bool resets;
        const float2 sums = cumulate(gates.values(), resets);
        reinterpret_cast<float2*>(factors.gate)[lane] = sums;
        float2 beta = betas.values();
        if constexpr (kConfig.trains) {
            if (beta.x == 0.f) beta.x = least_beta(kConfig.io);
            if (beta.y == 0.f) beta.y = least_beta(kConfig.io);
        }
        reinterpret_cast<float2*>(factors.beta)[lane] = beta;
        if (lane == 31) shared.decay[current.index] = resets ? kResets : exp2_fast(sums.y);
        if constexpr (kConfig.persistent)
            if (lane == 0) {
                const bool ends = chunk + 1 == work_of(work_tile).tokens.chunks;
                shared.work_tiles.chunks[current.index] = {
                    static_cast<short>(tokens_in<kConfig>(work_of(work_tile).tokens, chunk)), ends,
                    ends && work_of(work_tile + 1).tokens.chunks == WorkTile::kNone};
            }
        barrier(shared.stage_full[current.index]).arrive();
    }

    // Without norms. Half of the threads: the exponents of one key each; the others: the factors of one query.
    __device__ __forceinline__ void compute_factors(typename Plan::Factors& factors) const {
        const int token = thread % kChunk;
        if (thread < kChunk)
            store_key_exponents<kConfig.inverts_in_half()>(factors, token, 0.f);
        else
            store_query_factors(factors, token, 0.f, args.call.scale);
    }
    // With norms: the factors of queries, by two threads each; the inverse role has the exponents of keys.
    __device__ __forceinline__ void compute_query_factors(const SwizzledTile* queries, typename Plan::Factors& factors) const {
        const int token = thread / 2, half = thread % 2;
        float square = 0.f;
#pragma unroll 1
        for (int tile = 0; tile < kConfig.key_tiles(); ++tile) {
            const unsigned from = tile_row(queries[tile].bytes, token);
#pragma unroll
            for (int vector = 0; vector < 4; ++vector)
                add_squares<kConfig.io>(square, load_shared(row_vector(from, 4 * half + vector)));
        }
        square += __shfl_xor_sync(0xffffffffu, square, 1);
        if (half == 0) store_query_factors(factors, token, log_inverse_norm(square), args.call.scale);
        warpgroup_sync();
    }

    // In a block that prepares: loads a later chunk into this one's stage once its tiles have been multiplied.
    __device__ __forceinline__ void load_behind(int chunk) {
        const PipelineStage<kConfig.stages> at(chunk);
        barrier(shared.tiles_empty[at.index]).wait(at.parity);
        load_tiles(chunk + kConfig.stages, work_tile, at);
    }

    __device__ __forceinline__ void run() {
        if constexpr (kConfig.persistent) {
            run(ScalarStream(args.call.gate), ScalarStream(args.call.beta));
        } else {
            if (kConfig.chained && shared.work.cache.loads) return CachedChunkLoader<kConfig>{shared, args}.run(warp);
            if (kConfig.chained && shared.work.summaries.count() > 0) {
                if (thread == 0) load_transitions(shared, args);
                return __syncwarp();
            }
            ScalarStream gates(args.call.gate, shared.work), betas(args.call.beta, shared.work);
            if constexpr (kConfig.is_wide())
                run_with_long_keys(gates, betas);
            else
                run(gates, betas);
        }
    }

  private:
    __device__ __forceinline__ void run(ScalarStream gates, ScalarStream betas) {
        issue_loads(0, gates, betas);
#pragma unroll 1
        for (int chunk = 0, chunk_tile = 0; chunk < kConfig.stages; ++chunk) {
            chunk_tile = work_tile_of(chunk, chunk_tile);
            load_tiles(chunk, chunk_tile, PipelineStage<kConfig.stages>(chunk));
        }
        store_scalars(0, PipelineStage<kConfig.stages>(0), gates, betas);
        issue_loads(1, gates, betas);
        bool more = true;  // work tiles
#pragma unroll 1
        for (int chunk = 0; kConfig.persistent ? more : chunk < shared.work.tokens.chunks; ++chunk) {
            const PipelineStage<kConfig.stages> current(chunk), next(chunk + 1);
            find_lane();
            auto&& stage = tiles_of<kConfig>(shared, chunk, current.index);
            auto& factors = shared.factors[current.index];
            barrier(shared.stage_full[current.index]).wait(current.parity);
            if (kStrided && chunk > 0) load_behind(chunk - 1);
            if (tokens_of<kConfig, kStrided>(shared, chunk, current.index) < kChunk) [[unlikely]]
                NamedBarrier::sync(2 * kWarpgroup, kKeysBarrier);  // the inverse warpgroup clears tokens past the end
            float products[32];
            start_token_products<kConfig>(products, stage.query, stage.key);
            if (args.call.qk_norm) {
                compute_query_factors(stage.query, factors);
            } else {
                compute_factors(factors);
                barrier(shared.exponents_full[current.index]).arrive();
            }
            barrier(shared.stage_empty[next.index]).wait(next.parity ^ 1);
            if constexpr (kConfig.persistent) work_tile += __any_sync(0xffffffffu, ends_before(work_of(work_tile), chunk + 1));
            if (!kStrided && chunk + 1 >= kConfig.stages) load_tiles(chunk + 1, work_tile, next);
            store_scalars(chunk + 1, next, gates, betas);
            issue_loads(chunk + 2, gates, betas);
            cute::warpgroup_wait<0>();
            warpgroup_fence_operand(products);
            if (kStrided && lane == 0) barrier(shared.tiles_empty[current.index]).arrive();
            barrier(shared.exponents_full[current.index]).wait(current.parity);
            if (thread < kChunk) store_key_scales(factors, thread, args.call.qk_norm ? factors.key_scale[thread] : 0.f);
            if (kConfig.persistent || chunk >= shared.work.tokens.first_scores) {
                decay(products, *this, factors.query_row, factors.column);
                if constexpr (kConfig.chained)
                    lane = opaque(static_cast<int>(threadIdx.x)) % 32;  // recomputed to save a register
                store_scores<kConfig.io, false>(products, *this, shared.matrices[chunk % kConfig.slots()].scores,
                                                args.call.scale);
                cutlass::arch::fence_view_async_shared();
            }
            if constexpr (kConfig.persistent) more = is_followed(shared.work_tiles.chunks[current.index]);
            barrier(shared.matrices_full[current.index]).arrive();
        }
    }

    // Keys and scalars of a chunk are loaded two chunks ahead, queries and values one: as soon as the value role has read those
    // of the chunk before.
    __device__ __forceinline__ void run_with_long_keys(ScalarStream gates, ScalarStream betas) {
        constexpr int kStages = kConfig.stages, kRowStages = kConfig.row_stages();
        issue_loads(0, gates, betas);
#pragma unroll 1
        for (int chunk = 0; chunk < kStages; ++chunk) {
            load_keys(chunk);
            if (chunk < kRowStages) load_rows(chunk);
        }
#pragma unroll 1
        for (int chunk = 0; chunk < kStages - 1; ++chunk) {
            store_scalars(chunk, PipelineStage<kStages>(chunk), gates, betas);
            issue_loads(chunk + 1, gates, betas);
        }
#pragma unroll 1
        for (int chunk = 0; chunk < shared.work.tokens.chunks; ++chunk) {
            const PipelineStage<kStages> current(chunk), later(chunk + kStages - 1);
            const PipelineStage<kRowStages> rows(chunk), next_rows(chunk + 1);
            find_lane();
            const auto stage = tiles_of<kConfig>(shared, chunk, current.index);
            auto& factors = shared.factors[current.index];
            barrier(shared.stage_full[current.index]).wait(current.parity);
            barrier(shared.rows_full[rows.index]).wait(rows.parity);
            if (tokens_in<kConfig>(shared.work.tokens, chunk) < kChunk) [[unlikely]]
                NamedBarrier::sync(2 * kWarpgroup, kKeysBarrier);  // the inverse warpgroup clears tokens past the end
            float products[32];
            start_token_products<kConfig>(products, stage.query, stage.key);
            if (args.call.qk_norm) {
                compute_query_factors(stage.query, factors);
            } else {
                compute_factors(factors);
                barrier(shared.exponents_full[current.index]).arrive();
            }
            if (chunk > 0) {
                barrier(shared.rows_empty[next_rows.index]).wait(next_rows.parity ^ 1);
                load_rows(chunk + 1);
            }
            cute::warpgroup_wait<0>();
            warpgroup_fence_operand(products);
            barrier(shared.exponents_full[current.index]).wait(current.parity);
            if (thread < kChunk) store_key_scales(factors, thread, args.call.qk_norm ? factors.key_scale[thread] : 0.f);
            barrier(shared.scores_empty).wait(static_cast<unsigned>(chunk) & 1 ^ 1);
            if (chunk >= shared.work.tokens.first_scores) {
                decay(products, *this, factors.query_row, factors.column);
                store_scores<kConfig.io, false>(products, *this, shared.matrices[0].scores, args.call.scale);
                cutlass::arch::fence_view_async_shared();
            }
            barrier(shared.matrices_full[current.index]).arrive();
            barrier(shared.stage_empty[later.index]).wait(later.parity ^ 1);
            if (chunk > 0) load_keys(chunk + kStages - 1);
            store_scalars(chunk + kStages - 1, later, gates, betas);
            issue_loads(chunk + kStages, gates, betas);
        }
    }
};

}  // namespace gdn_cuda::gdn
