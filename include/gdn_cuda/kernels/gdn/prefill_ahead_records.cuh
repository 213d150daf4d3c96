// Chunks handed from blocks that prepare to blocks that own rows of the state, in gdn/prefill_ahead: matrices and scalars go
// through records in global memory, by bulk copies; a counter for each says that it is there.
#pragma once

#include <gdn_cuda/kernels/gdn/prefill_common.cuh>
#include <gdn_cuda/kernels/gdn/prefill_ahead_plan.cuh>
#include <gdn_cuda/kernels/gdn/prefill_segments.cuh>

namespace gdn_cuda::gdn {

// Waits until the thread's bulk stores are visible in global memory. Inline PTX: CUTLASS waits only for their reads.
__device__ __forceinline__ void wait_for_bulk_stores() {
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(0) : "memory");
}

// A pair's records and counters; chunks are counted from the sequence's first.
template <PrefillConfig kConfig>
struct PrefillRecords {
    PrefillRecord<kConfig>* records;
    unsigned* counters;

    __device__ __forceinline__ PrefillRecords(const PrefillAheadArgs& args, int pair)
        : records(static_cast<PrefillRecord<kConfig>*>(args.records) + static_cast<i64>(pair) * args.window - args.first_chunk),
          counters(args.have + static_cast<i64>(pair) * args.most_chunks) {}
};

// By one warp of a block that prepares.
template <PrefillConfig kConfig>
struct PrefillExport {
    using Plan = PrefillPreparerPlan<kConfig>;

    Plan& shared;
    const PrefillRecords<kConfig> to;
    const int first, spacing;  // in chunks

    __device__ __forceinline__ void run() {
        auto& block = shared.block;
        const int lane = threadIdx.x % 32;
#pragma unroll 1
        for (int chunk = 0; chunk < block.work.chunks; ++chunk) {
            const ChunkStage<kConfig.stages> current(chunk);
            barrier(block.ready[current.stage]).wait(current.parity);
            if (lane == 0) store(chunk, current.stage);
            __syncwarp();
            if (lane < kConfig.value_groups * 4) barrier(block.done[current.stage]).arrive();
        }
    }

  private:
    __device__ __forceinline__ void store(int chunk, int stage) {
        using Copy = cute::SM90_BULK_COPY_S2G;
        constexpr int kTile = sizeof(PrefillTile);
        auto& block = shared.block;
        const int slot = chunk % (kConfig.stages - 1), at = first + chunk * spacing;
        auto& matrices = block.matrices[slot];
        auto& record = to.records[at];
        const auto cancels = block.cancels[slot];
        unsigned columns = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) columns |= static_cast<unsigned>(cancels.column[i]) << i;
        shared.scalars.decay = block.decay[stage];
        shared.scalars.cancels = cancels;
        cutlass::arch::fence_view_async_shared();
        Copy::copy(&matrices.inverse, &record.inverse, kTile);
        Copy::copy(&matrices.scores, &record.scores, kTile);
        if (columns != 0) Copy::copy(&matrices.inverse_rest, &record.inverse_rest, kTile);
        Copy::copy(&block.factors[stage], &record.scalars, sizeof(block.factors[stage]));
        Copy::copy(&shared.scalars.decay, &record.scalars.decay, 16);
        cute::tma_store_arrive();
        wait_for_bulk_stores();
        red_release(to.counters + at, 1 + 2 * columns);
    }
};

// By three warps of a block that owns rows of the state, one thread each.
template <PrefillConfig kConfig>
struct PrefillImport {
    using Plan = PrefillOwnerPlan<kConfig>;
    static constexpr int kWarps = 3, kTile = sizeof(PrefillTile);

    Plan& shared;
    const PrefillArgs& args;
    const PrefillRecords<kConfig> from;
    const int first;  // chunk of the sequence
    const PrefillWork& work = shared.work;

    __device__ __forceinline__ void run(int warp) {
#pragma unroll 1
        for (int chunk = 0; chunk < work.chunks; ++chunk) {
            const ChunkStage<kConfig.stages> current(chunk);
            auto& stage = shared.stages[current.stage];
            Barrier& ready = barrier(shared.ready[current.stage]);
            unsigned columns = 0;
            if (warp == 0) columns = wait_for_record(chunk);
            barrier(shared.done[current.stage]).wait(current.parity ^ 1);
            if (warp == 0)
                load_record(chunk, current.stage, columns, ready);
            else if (warp == 1)
                load_tokens(chunk, stage.key, args.key, ready);
            else
                load_tokens(chunk, stage.query, args.query, ready, stage.value);
        }
    }

  private:
    __device__ __forceinline__ unsigned wait_for_record(int chunk) const {
        return wait_for_count(from.counters + first + chunk, 1) / 2;
    }
    __device__ __forceinline__ void load_record(int chunk, int at, unsigned columns, Barrier& ready) {
        using Copy = cute::SM90_BULK_COPY_G2S;
        constexpr int kScalars = sizeof(PrefillScalars<kConfig>);
        const auto& record = from.records[first + chunk];
        auto& stage = shared.stages[at];
        auto* mbarrier = reinterpret_cast<uint64_t*>(&ready);
        fence_proxy_async_global();
        if (columns != 0) [[unlikely]] {
            const ChunkStage<kConfig.stages> before(chunk - 2);
            if (chunk >= 2) barrier(shared.done[before.stage]).wait(before.parity);
            ready.expect_transaction(kTile);
            Copy::copy(&record.inverse_rest, mbarrier, &shared.inverse_rest[chunk % 2], kTile);
        }
        ready.arrive_and_expect_tx(2 * kTile + kScalars);
        Copy::copy(&record.scalars, mbarrier, &shared.factors[at], kScalars);
        Copy::copy(&record.inverse, mbarrier, &stage.inverse, kTile);
        Copy::copy(&record.scores, mbarrier, &stage.scores, kTile);
    }
    __device__ __forceinline__ void load_tokens(int chunk, PrefillTile* tiles, const TensorMap& map, Barrier& ready,
                                                PrefillTile* value = nullptr) {
        const int token = static_cast<int>(work.start) + chunk * kChunk;
        const int batch = args.recurrence.cu_seqlens.data != nullptr ? 0 : work.sequence;
        ready.arrive_and_expect_tx((kConfig.key_tiles() + (value != nullptr)) * kTile);
        if (value != nullptr) tma_load(value->bytes, args.value, {work.first_value, work.head, token, batch}, ready);
#pragma unroll
        for (int i = 0; i < kConfig.key_tiles(); ++i)
            tma_load(tiles[i].bytes, map, {i * kTileElements, work.key_head, token, batch}, ready);
    }
};

}  // namespace gdn_cuda::gdn
