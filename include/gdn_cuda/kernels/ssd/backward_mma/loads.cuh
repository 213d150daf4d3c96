// What a block loads, by cp.async, two steps ahead.
#pragma once

#include <gdn_cuda/kernels/chunked/warp_products.cuh>
#include <gdn_cuda/kernels/common/opaque.cuh>
#include <gdn_cuda/kernels/ssd/backward_mma/plan.cuh>
#include <gdn_cuda/kernels/ssd/gradients.cuh>

namespace gdn_cuda::ssd {

// Registers are too short for overlapping steps of a product with 256 states.
template <SsdBackwardMmaConfig kConfig>
using ChunkProducts = gdn::WarpProducts<kConfig.io, 2, kConfig.states == 256 ? 1 : 4>;

// A row tile's number in the group, its head, and its first channel there. Divisions would find them at every use.
struct RowTileAt {
    int tile, head, row;
};

template <SsdBackwardMmaConfig kConfig>
struct BackwardMmaLoads : ChunkProducts<kConfig> {
    using Base = ChunkProducts<kConfig>;
    using Plan = SsdBackwardMmaPlan;
    using Base::thread;
    using typename Base::Tile;
    using Io = Storage<kConfig.io>;
    static constexpr DType kIo = kConfig.io;
    static constexpr int kBlocks = kConfig.state_blocks(), kSteps = 2 * kBlocks;  // of a row tile

    Plan& shared;
    const SsdBackwardMmaArgs& args;
    const SsdChunkWork& work = shared.work;
    int stage = Plan::kStages - 1;  // the current step's

    __device__ __forceinline__ BackwardMmaLoads(Plan& shared, const SsdBackwardMmaArgs& args) : shared(shared), args(args) {}

    // At the start of a phase: otherwise the addresses of all phases live in registers at once.
    __device__ __forceinline__ void refresh() {
        this->find_lane(opaque(static_cast<int>(threadIdx.x)));
        this->find_warp();
    }
    __device__ __forceinline__ Plan::Stage& current() const { return shared.stages[stage]; }
    __device__ __forceinline__ Plan::RowTile& rows_of(const RowTileAt& at) const { return shared.rows[at.tile % 2]; }
    __device__ __forceinline__ ChunkSteps& steps_of(const RowTileAt& at) const { return shared.steps[at.tile % 3]; }

    // Zeros past `rows` and `columns`. `from`: the tile's first element.
    __device__ __forceinline__ void load(Tile& tile, const Io* from, i64 stride, int rows, int columns) const {
        constexpr int kRows = SsdBackwardMmaConfig::threads() / 8;
        const int row = static_cast<unsigned>(thread) / 8, vector = thread % 8;
        const unsigned to = row_vector(tile_row(tile.bytes, row), vector);
        const Io* const at = from + row * stride + 8 * vector;
#pragma unroll
        for (int i = 0; i < kChunk / kRows; ++i) {
            const bool exists = row + i * kRows < rows && 8 * vector < columns;
            cp_async_16_zfill(to + i * kRows * 128, exists ? at + i * kRows * stride : from, exists);
        }
    }
    // By one thread, before the first load.
    __device__ __forceinline__ void find_sources() const {
        const auto first = [&](const Rows& rows, int head) -> const void* {
            return static_cast<const Io*>(rows.data) + work.place.batch * rows.batch +
                   (work.place.start + work.place.first) * rows.token + head * rows.head;
        };
        shared.sources = {.x = first(args.x, 0),
                          .dy = first(args.out_gradient, 0),
                          .C = first(args.C, work.group),
                          .B = first(args.B, work.group)};
    }
    __device__ __forceinline__ RowTileAt next(const RowTileAt& at) const {
        const bool is_last = at.row + kTileRows >= args.channels;
        return {.tile = at.tile + 1, .head = at.head + is_last, .row = is_last ? 0 : at.row + kTileRows};
    }
    // 64 states of the chunk's tokens.
    __device__ __forceinline__ void load_tokens(Tile& tile, const void* from, i64 stride, int block) const {
        const int first = block * kMmaTileElements;
        load(tile, static_cast<const Io*>(from) + first, stride, work.count, args.state_count - first);
    }
    // 64 states of a row tile.
    __device__ __forceinline__ void load_states(Tile& tile, const void* states, const RowTileAt& at, int block) const {
        const int first = block * kMmaTileElements;
        const i64 head = static_cast<i64>(work.slot) * args.heads + at.head;
        const Io* const from = static_cast<const Io*>(states) + (head * args.channels + at.row) * args.state_count + first;
        load(tile, from, args.state_count, args.channels - at.row, args.state_count - first);
    }
    __device__ __forceinline__ void load_row_tile(const RowTileAt& at) const {
        const int columns = args.channels - at.row, count = work.count;
        const auto& from = shared.sources;
        auto& [x, dy] = rows_of(at);
        load(x, static_cast<const Io*>(from.x) + at.head * args.x.head + at.row, args.x.token, count, columns);
        load(dy, static_cast<const Io*>(from.dy) + at.head * args.out_gradient.head + at.row, args.out_gradient.token, count,
             columns);
        static_assert(sizeof(ChunkSteps) == 32 * 16);
        const ChunkSteps& steps = args.steps[static_cast<i64>(work.slot) * args.heads + at.head];
        if (thread < 32)
            cp_async_16_zfill(shared_address(&steps_of(at)) + 16 * thread, reinterpret_cast<const uint4*>(&steps) + thread,
                              true);
    }
    // C and B, in the steps before the first row tile and after the last one.
    __device__ __forceinline__ void load_group(Plan::Stage& to, int block) const {
        load_tokens(to.first, shared.sources.C, args.C.token, block);
        load_tokens(to.tokens, shared.sources.B, args.B.token, block);
    }
    __device__ __forceinline__ void load_before(Plan::Stage& to, const RowTileAt& at, int step) const {
        if (step < kBlocks)
            load_group(to, step);
        else
            load_step(to, at, step - kBlocks);
    }
    // Step `step` of a row tile, of the one after it if it has no such step, or of the end.
    __device__ __forceinline__ void load_step(Plan::Stage& to, RowTileAt at, int step) const {
        if (step >= kSteps) step -= kSteps, at = next(at);
        if (at.tile >= work.tiles) {
            if (step < kBlocks) load_group(to, step);
            return;
        }
        if (step == 0) load_row_tile(at);
        const bool reads = step % 2 == 0;
        load_states(to.first, reads ? args.states : args.gradients, at, step / 2);
        load_tokens(to.tokens, reads ? shared.sources.C : shared.sources.B, reads ? args.C.token : args.B.token, step / 2);
    }

    // Waits for a step's tiles and frees the stage of the step before, to which `load` issues the copies for two steps later.
    template <class Load>
    __device__ __forceinline__ void begin(const Load& load) {
        cp_async_wait<1>();
        __syncthreads();
        refresh();
        Plan::Stage& free = shared.stages[stage];
        stage = stage + 1 == Plan::kStages ? 0 : stage + 1;
        load(free);
        cp_async_fence();
    }
};

}  // namespace gdn_cuda::ssd
