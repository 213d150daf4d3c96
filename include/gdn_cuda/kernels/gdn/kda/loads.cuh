// Loads of records and values into an owner's stages, and stores of its outputs: by single threads of one warpgroup.
#pragma once

#include <gdn_cuda/kernels/chunked/ahead/handover.cuh>
#include <gdn_cuda/kernels/chunked/outputs.cuh>
#include <gdn_cuda/kernels/gdn/kda/own_plan.cuh>
#include <gdn_cuda/kernels/gdn/kda/window.cuh>
#include <gdn_cuda/kernels/hopper/counters.cuh>

namespace gdn_cuda::gdn {

// A role's next work tile; slots are used in turn. `index`: of the block's work tiles.
template <ChunkedConfig kConfig>
__device__ __forceinline__ const KdaOwnWork& wait_for_work(KdaOwnerPlan<kConfig>& shared, int index) {
    const PipelineStage<kKdaOwnSlots> slot(index);
    barrier(shared.work_full[slot.index]).wait(slot.parity);
    return shared.works[slot.index];
}
// By a warp that has finished it.
template <ChunkedConfig kConfig>
__device__ __forceinline__ void release_work(KdaOwnerPlan<kConfig>& shared, int index) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier(shared.work_empty[PipelineStage<kKdaOwnSlots>(index).index]).arrive();
}

// A work tile's records, by the block's chunks.
struct KdaRecords {
    const KdaRecord* records;
    const unsigned* flags;
    const int* positions;  // of packed sequences
    int position, step;    // where not packed: the block's first chunk's, and from a chunk to the next
    int first, count;      // the window's

    // A sequence's records from a chunk on, which is the block's chunk 0.
    __device__ __forceinline__ KdaRecords(const KdaOwnArgs& args, int sequence, int head, const Span& span, int chunk)
        : records(args.records + static_cast<i64>(head) * args.window.count),
          flags(args.flags + static_cast<i64>(head) * args.window.count),
          positions(args.window.positions),
          first(args.window.first),
          count(args.window.count) {
        step = args.chunked.call.sequences;
        position = chunk * step + sequence;
        if (positions != nullptr) positions += first_kda_chunk(span.start, sequence) + chunk;
    }
    __device__ __forceinline__ KdaRecords(const KdaOwnArgs& args, const KdaOwnWork& work)
        : KdaRecords(args, work.sequence, work.head, {work.tokens.start - work.tokens.before, 0},
                     work.work_tile.first - work.begin) {}
    // Clamped: sequences may overlap, as the host cannot check cu_seqlens.
    __device__ __forceinline__ int index(int chunk) const {
        const int at = (positions != nullptr ? positions[chunk] : position + chunk * step) - first;
        return max(min(at, count - 1), 0);
    }
};

// By a warpgroup that has written a chunk's outputs in place of its values. By TMA, unless the tile would overwrite the next
// sequence's. Summaries, and segments' L and M, have no outputs.
template <class Owner>
__device__ __forceinline__ void store_output(const Owner& own, int chunk, const SwizzledTile& tile) {
    const int stage = PipelineStage<Owner::kConfig.stages>(chunk).index;
    const bool by_tma = !is_packed(own.args) || end_of<Owner::kConfig>(own.work.tokens, chunk) <= own.work.tokens.length,
               has_outputs = chunk >= own.work.tokens.first_output;
    if (!by_tma && has_outputs) [[unlikely]] {
        own.warpgroup_sync();
        store_tile_without_tma(own, chunk, tile);
    }
    if (own.thread == 0) own.shared.is_stored[stage] = !by_tma || !has_outputs;
    cutlass::arch::fence_view_async_shared();
    arrive_by_warp(own, own.shared.output_full[stage]);
}

// kWaits: other blocks of the launch prepare the records.
template <ChunkedConfig kConfig, bool kWaits>
struct KdaLoader {
    using Copy = cute::SM90_BULK_COPY_G2S;
    enum Warps : int { records, values, residuals, outputs };
    static constexpr int kTile = sizeof(SwizzledTile);

    KdaOwnerPlan<kConfig>& shared;
    const KdaOwnArgs& all;
    const ChunkedArgs& args = all.chunked;
    unsigned residual_parity = 0, tail_parity = 0;

    __device__ __forceinline__ void run(int warp) {
#pragma unroll 1
        for (int index = 0;; ++index) {
            const KdaOwnWork& work = wait_for_work(shared, index);
            if (work.is_none()) break;
            if (threadIdx.x % 32 == 0) {
                if (warp == records) load_records(work);
                if (warp == values) load_values(work);
                if (warp == residuals) load_residuals(work);
                if (warp == outputs) store_outputs(work);
            }
            __syncwarp();
            if (warp == values && has_tail<kConfig>(work.tokens, tail_chunk<kConfig>(work.tokens))) clear_tail(work.tokens);
            release_work(shared, index);
        }
    }

  private:
    // Once the record is there: then a proxy fence comes before its loads.
    __device__ __forceinline__ static unsigned flags_of(const KdaRecords& from, int index) {
        return kWaits ? wait_for_count(from.flags + index, 1) : from.flags[index];
    }
    __device__ __forceinline__ static uint64_t* word(Barrier& full) { return reinterpret_cast<uint64_t*>(&full); }

    __device__ __forceinline__ void load_records(const KdaOwnWork& work) {
        constexpr int kTiles = kKdaPlainTiles * kTile;
        const KdaRecords from(all, work);
        const int begin = work.begin, last = work.tokens.chunks - 1, wants_next = max(begin, last - (kKdaPlannedAhead - 1));
        int index = work.work_tile.first_record, next_index = from.index(min(begin + 1, last));
        unsigned flags = kWaits ? 0 : from.flags[index];
#pragma unroll 1
        for (int chunk = begin; chunk <= last; ++chunk) {
            const PipelineStage<kConfig.stages> current(chunk);
            if (chunk == wants_next) barrier(shared.next_wanted).arrive();
            const unsigned next_flags = kWaits ? 0 : from.flags[next_index];
            const int after_next = from.index(min(chunk + 2, last));
            if constexpr (kWaits) flags = flags_of(from, index);
            Barrier& full = barrier(shared.stage_full[current.index]);
            barrier(shared.stage_empty[current.index]).wait(current.parity ^ 1);
            if constexpr (kWaits) fence_proxy_async_global();
            full.expect_transaction(kTiles + static_cast<int>(sizeof(KdaFactors)));
            const KdaRecord& record = from.records[index];
            Copy::copy(record.key_in, word(full), shared.stages[current.index].key_in, kTiles);
            Copy::copy(&record.factors, word(full), &shared.factors[current.index], sizeof(KdaFactors));
            shared.flags[current.index] = flags;  // a work tile's first flags arrive beside its first record
            full.arrive();
            index = next_index;
            next_index = after_next;
            flags = next_flags;
        }
    }
    __device__ __forceinline__ void load_values(const KdaOwnWork& work) {
#pragma unroll 1
        for (int chunk = work.begin; chunk < work.tokens.chunks; ++chunk) {
            const PipelineStage<kConfig.stages> current(chunk);
            Barrier& full =
                barrier(has_tail<kConfig>(work.tokens, chunk) ? shared.tail_full : shared.stage_full[current.index]);
            barrier(shared.stage_empty[current.index]).wait(current.parity ^ 1);
            full.arrive_and_expect_tx(kTile);
            tma_load(shared.stages[current.index].value.bytes, args.value,
                     {work.first_value, work.head, first_token<kConfig>(work.tokens, chunk), batch_of(args, work)}, full);
        }
    }
    // Tokens past the end are the next sequence's, and may be infinite or NaN.
    __device__ __forceinline__ void clear_tail(const PassTokens& tokens) {
        const int chunk = tail_chunk<kConfig>(tokens), stage = PipelineStage<kConfig.stages>(chunk).index,
                  count = tokens_in<kConfig>(tokens, chunk), lane = threadIdx.x % 32;
        barrier(shared.tail_full).wait(tail_parity);
        tail_parity ^= 1;
        for (int i = lane; i < (kChunk - count) * 8; i += 32)
            store_shared(row_vector(tile_row(shared.stages[stage].value.bytes, count + i / 8), i % 8), uint4{});
        cutlass::arch::fence_view_async_shared();  // where the chunk goes token by token, its outputs' copy takes them too
        __syncwarp();
        if (lane == 0) barrier(shared.stage_full[stage]).arrive();
    }
    __device__ __forceinline__ void load_residuals(const KdaOwnWork& work) {
        const KdaRecords from(all, work);
#pragma unroll 1
        for (int chunk = work.begin; chunk < work.tokens.chunks; ++chunk) {
            const int index = chunk == work.begin ? work.work_tile.first_record : from.index(chunk);  // as load_records has it
            if (!(flags_of(from, index) & kKdaCancels)) continue;
            auto& stage = shared.stages[PipelineStage<kConfig.stages>(chunk).index];
            const KdaRecord& record = from.records[index];
            Barrier& full = barrier(shared.residual_full);
            barrier(shared.tiles_read).wait(residual_parity);
            residual_parity ^= 1;
            if constexpr (kWaits) fence_proxy_async_global();
            full.arrive_and_expect_tx((kKdaTiles + 1) * kTile);
            Copy::copy(record.update_residual, word(full), stage.update_residual(), kKdaTiles * kTile);
            Copy::copy(&record.scores_residual, word(full), stage.scores_residual(), kTile);
        }
    }
    __device__ __forceinline__ void store_outputs(const KdaOwnWork& work) {
#pragma unroll 1
        for (int chunk = work.begin; chunk < work.tokens.chunks; ++chunk) {
            const PipelineStage<kConfig.stages> current(chunk);
            barrier(shared.output_full[current.index]).wait(current.parity);
            if (!shared.is_stored[current.index]) {
                start_tile_store<kConfig>(args, work, chunk, 0, shared.stages[current.index].value);
                cute::tma_store_wait<0>();
            }
            barrier(shared.stage_empty[current.index]).arrive();
        }
    }
};

}  // namespace gdn_cuda::gdn
