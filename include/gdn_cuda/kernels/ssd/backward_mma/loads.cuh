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
    __device__ __forceinline__ Plan::RowTile& rows_of(int tile) const { return shared.rows[tile % 2]; }
    __device__ __forceinline__ ChunkSteps& steps_of(int tile) const { return shared.steps[tile % 3]; }

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
    __device__ __forceinline__ const Io* rows_at(const Rows& rows, int head) const {
        return static_cast<const Io*>(rows.data) + work.place.batch * rows.batch +
               (work.place.start + work.place.first) * rows.token + head * rows.head;
    }
    // 64 states of the chunk's tokens.
    __device__ __forceinline__ void load_tokens(Tile& tile, const Rows& rows, int block) const {
        const int first = block * kMmaTileElements;
        load(tile, rows_at(rows, work.group) + first, rows.token, work.count, args.state_count - first);
    }
    // 64 states of a row tile.
    __device__ __forceinline__ void load_states(Tile& tile, const void* states, int row_tile, int block) const {
        const int first = block * kMmaTileElements, row = row_of(args, work, row_tile);
        const i64 head = static_cast<i64>(work.slot) * args.heads + head_of(args, work, row_tile);
        const Io* const from = static_cast<const Io*>(states) + (head * args.channels + row) * args.state_count + first;
        load(tile, from, args.state_count, args.channels - row, args.state_count - first);
    }
    __device__ __forceinline__ void load_row_tile(int tile) const {
        const int head = head_of(args, work, tile), row = row_of(args, work, tile), columns = args.channels - row;
        auto& [x, dy] = rows_of(tile);
        load(x, rows_at(args.x, head) + row, args.x.token, work.count, columns);
        load(dy, rows_at(args.out_gradient, head) + row, args.out_gradient.token, work.count, columns);
        static_assert(sizeof(ChunkSteps) == 32 * 16);
        const ChunkSteps& from = args.steps[static_cast<i64>(work.slot) * args.heads + head];
        if (thread < 32)
            cp_async_16_zfill(shared_address(&steps_of(tile)) + 16 * thread, reinterpret_cast<const uint4*>(&from) + thread,
                              true);
    }
    // C and B, in the steps before the first row tile and after the last one.
    __device__ __forceinline__ void load_group(Plan::Stage& to, int block) const {
        load_tokens(to.first, args.C, block);
        load_tokens(to.tokens, args.B, block);
    }
    __device__ __forceinline__ void load_before(Plan::Stage& to, int step) const {
        if (step < kBlocks)
            load_group(to, step);
        else
            load_step(to, 0, step - kBlocks);
    }
    // Step `step` of a row tile, of the one after it if it has no such step, or of the end.
    __device__ __forceinline__ void load_step(Plan::Stage& to, int tile, int step) const {
        if (step >= kSteps) step -= kSteps, ++tile;
        if (tile >= work.tiles) {
            if (step < kBlocks) load_group(to, step);
            return;
        }
        if (step == 0) load_row_tile(tile);
        const bool reads = step % 2 == 0;
        load_states(to.first, reads ? args.states : args.gradients, tile, step / 2);
        load_tokens(to.tokens, reads ? args.C : args.B, step / 2);
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
