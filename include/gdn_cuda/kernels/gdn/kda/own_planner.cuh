// The warpgroup of gdn/kda_own that plans: which work tiles its block has. The first is the block's own; each further one is
// the next that no block has taken. It also finishes work tiles without chunks.
#pragma once

#include <gdn_cuda/kernels/chunked/block.cuh>
#include <gdn_cuda/kernels/gdn/kda/chain_parts.cuh>
#include <gdn_cuda/kernels/gdn/kda/own_work_tile.cuh>

namespace gdn_cuda::gdn {

template <ChunkedConfig kConfig>
struct KdaPlanner {
    static constexpr int kGroup = 2;  // its warpgroup

    KdaOwnerPlan<kConfig>& shared;
    const KdaOwnArgs& args;
    int next;  // work tile
    const int blocks;
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
    int takes = 0;

    __device__ __forceinline__ void run() {
        int index = 0, chunks = 0;
#pragma unroll 1
        for (; next < args.work_tiles; take()) {
            KdaWorkTile work_tile;
            if (!find_kda_work_tile(args, next, work_tile)) continue;
            const bool runs = block_of(work_tile).place == Place::run && work_tile.first < work_tile.last;
            if (runs) {
                const PipelineStage<kKdaOwnSlots> slot(index);
                barrier(shared.work_empty[slot.index]).wait(slot.parity ^ 1);
                KdaOwnWork& work = shared.works[slot.index];
                if (thread == 0) {
                    plan(work, work_tile, chunks);
                    barrier(shared.work_full[slot.index]).arrive();
                }
                barrier(shared.work_full[slot.index]).wait(slot.parity);
                if (index > 0) prefetch_state(work);
                chunks += work_tile.last - work_tile.first;
            }
            finish(work_tile);
            if (runs) barrier(shared.next_wanted).wait(index++ & 1);
        }
        const PipelineStage<kKdaOwnSlots> slot(index);
        barrier(shared.work_empty[slot.index]).wait(slot.parity ^ 1);
        if (thread == 0) {
            shared.works[slot.index].tokens.chunks = 0;
            barrier(shared.work_full[slot.index]).arrive();
        }
    }

  private:
    // Called by the whole warpgroup, as are those that follow.
    __device__ __forceinline__ void take() {
        if (blocks >= args.work_tiles) {
            next = args.work_tiles;
            return;
        }
        int& taken = shared.taken[takes++ % 2];  // the other one may still be read
        if (thread == 0) taken = blocks + static_cast<int>(atomicAdd(args.taken + args.segments.follow, 1u));
        NamedBarrier::sync(kWarpgroup, kWarpgroupBarrier + kGroup);
        next = taken;
    }
    __device__ __forceinline__ ChunkedBlock<kConfig> block_of(const KdaWorkTile& work_tile) const {
        return {args.chunked, 0, work_tile.sequence, 0, work_tile.head, work_tile.row_tile};
    }
    // What no chunk does: outputs of tokens past the last sequence and of skipped or poisoned sequences, and states of
    // sequences without tokens.
    __device__ __forceinline__ void finish(const KdaWorkTile& work_tile) const {
        if (work_tile.first > 0) return;
        ChunkedBlock<kConfig> block = block_of(work_tile);
        const GdnCall& call = args.chunked.call;
        if (block.place != Place::run)
            fill(block, block.span.start, end_of_uncomputed(call, block.span, block.place), output_of_uncomputed(block.place));
        else if (block.chunks == 0)
            block.copy_state(thread, kWarpgroup);
        if (is_packed(args.chunked) && work_tile.sequence == call.sequences - 1)
            fill(block, block.span.start + block.span.length, call.tokens, 0.f);
    }
    // Outputs of tokens [first, last), whose rows start on 16 bytes.
    __device__ __forceinline__ void fill(const ChunkedBlock<kConfig>& block, i64 first, i64 last, float x) const {
        constexpr int kVectors = kValueRows / 8;
        const GdnCall& call = args.chunked.call;
        const int row = block.first_row + thread % kVectors * 8;
        if (row >= call.outputs) return;
        using Io = Storage<kConfig.io>;
        i64 token = first + thread / kVectors;
        Io* at = static_cast<Io*>(call.output.data) + block.sequence * call.output.batch + block.head * call.output.head + row +
                 token * call.output.token;
        const unsigned pair = pack<kConfig.io>(x, x);
#pragma unroll 1
        for (; token < last; token += kWarpgroup / kVectors, at += kWarpgroup / kVectors * call.output.token)
            *reinterpret_cast<uint4*>(at) = {pair, pair, pair, pair};
    }
    __device__ __forceinline__ void plan(KdaOwnWork& work, const KdaWorkTile& work_tile, int begin) const {
        ChunkedBlock<kConfig> block = block_of(work_tile);
        block.plan_outputs(work, work_tile.first, work_tile.last);
        if (work_tile.rows != KdaOwnRows::outputs) work.tokens.first_output = work.tokens.chunks;
        if (work_tile.rows == KdaOwnRows::transition) {
            work.first_value = args.chunked.call.dv;  // past all values, where TMA fills with zeros
            work.rows = args.chunked.call.dk;
        }
        const int tokens = begin * kChunk;
        work.tokens.start -= tokens;
        work.tokens.before -= tokens;
        work.tokens.length += tokens;
        work.tokens.chunks += begin;
        work.tokens.first_output += begin;
        work.tokens.first_scores += begin;
        work.work_tile = work_tile;
        work.begin = begin;
    }
    // Brings the state into L2 that the chain loads when it has finished the work tile before.
    __device__ __forceinline__ void prefetch_state(const KdaOwnWork& work) const {
        constexpr int kLine = 128;
        const StatePlace from = state_before(KdaPlaces{args.chunked, work}, work);
        if (from.data == nullptr) return;
        const int row = args.chunked.call.dk * bytes_of(from.type), rows = min(kValueRows, work.rows - work.first_row);
        const char* const first = static_cast<const char*>(from.data) + static_cast<i64>(work.first_row) * row;
        for (int at = kLine * thread; at < rows * row; at += kLine * kWarpgroup)
            asm volatile("prefetch.global.L2 [%0];" ::"l"(first + at));  // CUTLASS prefetches through TMA only
    }
};

}  // namespace gdn_cuda::gdn
