// The loads of a block of gdn/backward_gradients: by one thread, which runs ahead of the products.
#pragma once

#include <gdn_cuda/kernels/common/tma.cuh>
#include <gdn_cuda/kernels/gdn/backward_gradients/plan.cuh>
#include <gdn_cuda/kernels/hopper/pipeline.cuh>

namespace gdn_cuda::gdn {

template <HopperGradientsConfig kConfig>
using GradientsStage = PipelineStage<HopperGradientsPlan<kConfig>::kStages>;

template <HopperGradientsConfig kConfig>
struct GradientsLoads {
    using Plan = HopperGradientsPlan<kConfig>;
    using Stage = GradientsStage<kConfig>;
    static constexpr int kTile = sizeof(SwizzledTile), kKeyTiles = kConfig.key_tiles;

    Plan& shared;
    const HopperGradientsArgs& args;
    const BackwardGradientsArgs& call = args.call;
    int heads = 0, slabs = 0;  // loaded so far

    __device__ __forceinline__ GradientsLoads(Plan& shared, const HopperGradientsArgs& args) : shared(shared), args(args) {}

    __device__ __forceinline__ void run() {
        int items = 0;
#pragma unroll 1
        for (int item = static_cast<int>(blockIdx.x); item < args.work_items; item += static_cast<int>(gridDim.x)) {
            const int key_head = static_cast<int>(item / call.from.chunks);
            const i64 index = item - key_head * call.from.chunks;
            const ChunkPlace place = chunk_at(call.cu_seqlens, call.sequences, call.tokens, index);
            if (place.sequence < 0) continue;
            const Stage stage(items++);
            barrier(shared.tokens_empty[stage.index]).wait(stage.parity ^ 1);
            shared.work[stage.index] = {.index = index,
                                        .start = place.start,
                                        .sequence = place.sequence,
                                        .first = place.first,
                                        .count = min(kChunk, place.length - place.first),
                                        .key_head = key_head};
            load_tokens(stage.index, place, key_head);
            load_heads(place, key_head, index);
        }
        const Stage stage(items);
        barrier(shared.tokens_empty[stage.index]).wait(stage.parity ^ 1);
        shared.work[stage.index].key_head = -1;
        barrier(shared.tokens_full[stage.index]).arrive();
    }

  private:
    __device__ __forceinline__ TileAt at_tokens(const ChunkPlace& place, int element, int head) const {
        const bool packed = call.cu_seqlens.data != nullptr;
        return {element, head, static_cast<int>(place.start) + place.first, packed ? 0 : place.sequence};
    }
    __device__ __forceinline__ void load_tokens(int stage, const ChunkPlace& place, int key_head) const {
        Barrier& full = barrier(shared.tokens_full[stage]);
        full.arrive_and_expect_tx(2 * kKeyTiles * kTile);
#pragma unroll
        for (int tile = 0; tile < kKeyTiles; ++tile) {
            const TileAt at = at_tokens(place, tile * kTileElements, key_head);
            tma_load(shared.tokens[stage].query[tile].bytes, args.query, at, full);
            tma_load(shared.tokens[stage].key[tile].bytes, args.key, at, full);
        }
    }
    __device__ __forceinline__ const ChunkScalars& scalars_of(int head, i64 index) const {
        return call.from.scalars[head * call.from.chunks + index];
    }
    __device__ __forceinline__ void load_heads(const ChunkPlace& place, int key_head, i64 index) {
        const int first = key_head * call.heads_per_key, end = first + call.heads_per_key;
        unsigned cancels = scalars_of(first, index).cancels;
#pragma unroll 1
        for (int head = first; head < end; ++head, ++heads) {
            const unsigned next = head + 1 < end ? scalars_of(head + 1, index).cancels : 0;
#pragma unroll 1
            for (int first_value = 0; first_value < call.dv; first_value += kTileElements, ++slabs)
                load_slab(place, head, index, first_value, cancels != 0);
            cancels = next;
        }
    }
    __device__ __forceinline__ void load_slab(const ChunkPlace& place, int head, i64 index, int first_value, bool two_part) {
        const Stage stage(slabs), scalars(heads);
        auto& slab = shared.slabs[stage.index];
        Barrier& full = barrier(shared.slab_full[stage.index]);
        const bool begins = first_value == 0;
        barrier(shared.slab_empty[stage.index]).wait(stage.parity ^ 1);
        if (begins) barrier(shared.head_done[scalars.index]).wait(scalars.parity ^ 1);
        full.arrive_and_expect_tx((3 + two_part + 2 * kKeyTiles) * kTile +
                                  (begins ? static_cast<int>(sizeof(ChunkScalars)) : 0));
        if (begins)
            cute::SM90_BULK_COPY_G2S::copy(&scalars_of(head, index), reinterpret_cast<uint64_t*>(&full),
                                           &shared.scalars[scalars.index], sizeof(ChunkScalars));
        const TileAt at = at_tokens(place, first_value, head);
        const int chunk = static_cast<int>(head * call.from.chunks + index);
        tma_load(slab.output_gradient.bytes, args.output_gradient, at, full);
        tma_load(slab.error.bytes, args.errors, {first_value, 0, 0, chunk}, full);
        tma_load(slab.value_gradient.bytes, args.value_gradient, at, full);
        if (two_part) tma_load(slab.error_residual.bytes, args.errors, {first_value, 1, 0, chunk}, full);
#pragma unroll
        for (int tile = 0; tile < kKeyTiles; ++tile) {
            tma_load(slab.state[tile].bytes, args.states, {tile * kTileElements, 0, first_value, chunk}, full);
            tma_load(slab.state_gradient[tile].bytes, args.state_gradients, {tile * kTileElements, 0, first_value, chunk},
                     full);
        }
    }
};

}  // namespace gdn_cuda::gdn
