// What a block loads of its chunk, by cp.async: issued as soon as a tile's shared memory is free, waited for before use.
#pragma once

#include <gdn_cuda/kernels/chunked/warp_products.cuh>
#include <gdn_cuda/kernels/common/opaque.cuh>
#include <gdn_cuda/kernels/gdn/backward_mma_gradients/plan.cuh>
#include <gdn_cuda/kernels/gdn/recurrent/tokens.cuh>

namespace gdn_cuda::gdn {

// With four blocks of key columns registers are too short for products whose steps overlap.
template <BackwardGradientsConfig kConfig>
using GradientsProducts = WarpProducts<kConfig.io, 1, kConfig.key_blocks == 4 ? 1 : 4>;

template <BackwardGradientsConfig kConfig>
struct ChunkLoads : GradientsProducts<kConfig> {
    using Base = GradientsProducts<kConfig>;
    using typename Base::Tile, typename Base::TileSums;
    using TilePair = BackwardGradientsPlan::TilePair;
    using Base::thread;
    using Io = Storage<kConfig.io>;
    static constexpr int kBlocks = kConfig.key_blocks;

    BackwardGradientsPlan& shared;
    const BackwardGradientsArgs& args;
    const GradientsWork& work = shared.work;

    __device__ __forceinline__ ChunkLoads(BackwardGradientsPlan& shared, const BackwardGradientsArgs& args)
        : shared(shared), args(args) {}

    // At the start of a phase: otherwise the addresses of all phases live in registers at once.
    __device__ __forceinline__ void refresh() {
        this->find_lane(opaque(static_cast<int>(threadIdx.x)));
        this->find_warp();
    }

    __device__ __forceinline__ Io* rows_of(const Rows& rows, int head) const { return rows_of_chunk<Io>(rows, work, head); }
    __device__ __forceinline__ i64 place_of(int head) const { return head * args.from.chunks + work.index; }
    __device__ __forceinline__ int slabs() const { return (args.dv + kChunk - 1) / kChunk; }
    // The current value head's; its index is in shared memory to save registers.
    __device__ __forceinline__ const ChunkScalars& scalars() const { return shared.scalars[shared.head % 2]; }
    __device__ __forceinline__ int parts() const { return shared.sources[shared.head % 2].parts; }
    // Whether the key head has another value head.
    __device__ __forceinline__ bool more() const { return shared.head + 1 < (work.key_head + 1) * args.heads_per_key; }
    // By one thread, long before loads: addresses take too many instructions to be found by all for every tile.
    __device__ __forceinline__ void find_sources(int head) const {
        const i64 at = place_of(head), state = at * args.dv * args.dk;
        shared.sources[head % 2] = {.output_gradient = rows_of(args.output_gradient, head),
                                    .value_gradient = rows_of(args.value_gradient, head),
                                    .errors = static_cast<const Io*>(args.from.errors) + 2 * at * kChunk * args.dv,
                                    .states = static_cast<const Io*>(args.from.states) + state,
                                    .state_gradients = static_cast<const Io*>(args.from.state_gradients) + state,
                                    .parts = args.from.scalars[at].cancels != 0 ? 2 : 1};
    }

    // Commits the copies issued since the last call as one group.
    static __device__ __forceinline__ void end_group() { cp_async_fence(); }
    // By the whole block: all groups but the last kPending are there for every thread.
    template <int kPending = 0>
    static __device__ __forceinline__ void wait_for_groups() {
        cp_async_wait<kPending>();
        __syncthreads();
    }

    // A thread loads one vector of a tile: zeros past `rows` and `columns`. `from`: the tile's first element.
    __device__ __forceinline__ void load(Tile& tile, const void* from, i64 stride, int rows, int columns) const {
        static_assert(BackwardGradientsConfig::threads() * 16 == sizeof(Tile));
        const int row = static_cast<unsigned>(thread) / 8, vector = thread % 8;
        cp_async_16_zfill(row_vector(tile_row(tile.bytes, row), vector),
                          static_cast<const Io*>(from) + row * stride + 8 * vector, row < rows && 8 * vector < columns);
    }
    static __device__ __forceinline__ const Io* columns_from(const void* source, i64 first) {
        return static_cast<const Io*>(source) + first;
    }
    __device__ __forceinline__ void load_scalars(int head) const {
        constexpr int kVectors = sizeof(ChunkScalars) / 16;
        if (thread < kVectors)
            cp_async_16_zfill(shared_address(&shared.scalars[head % 2]) + 16 * thread,
                              reinterpret_cast<const uint4*>(args.from.scalars + place_of(head)) + thread, true);
    }
    __device__ __forceinline__ void load_values(int head, int slab) const {
        const auto& from = shared.sources[head % 2];
        const int first = slab * kChunk, columns = args.dv - first, count = work.count;
        load(shared.values.output_gradient, columns_from(from.output_gradient, first), args.output_gradient.token, count,
             columns);
        load(shared.values.value_gradient, columns_from(from.value_gradient, first), args.value_gradient.token, count, columns);
        load(shared.values.error[0], columns_from(from.errors, first), args.dv, count, columns);
        if (from.parts > 1) [[unlikely]]
            load(shared.values.error[1], columns_from(from.errors, kChunk * args.dv + first), args.dv, count, columns);
    }
    // Queries, then keys.
    __device__ __forceinline__ void load_tokens(TilePair& to, int block) const {
        const int first = block * kChunk, columns = args.dk - first, count = work.count;
        load(to[0], columns_from(shared.queries, first), args.query.token, count, columns);
        load(to[1], columns_from(shared.keys, first), args.key.token, count, columns);
    }
    // S, then E.
    __device__ __forceinline__ void load_states(int slab, int block) const {
        const auto& from = shared.sources[shared.head % 2];
        const i64 first = slab * kChunk * args.dk + block * kChunk;
        const int rows = args.dv - slab * kChunk, columns = args.dk - block * kChunk;
        load(shared.states[0], columns_from(from.states, first), args.dk, rows, columns);
        load(shared.states[1], columns_from(from.state_gradients, first), args.dk, rows, columns);
    }
};

}  // namespace gdn_cuda::gdn
