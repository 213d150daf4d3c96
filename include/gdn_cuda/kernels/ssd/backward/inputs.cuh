// The inputs role: the first warp issues the TMA loads; the second derives a head's factors from dt, and the gradients of δ and
// of its decays from what the others find; the last two multiply the states before chunks by their gradients.
#pragma once

#include <gdn_cuda/kernels/ssd/backward/work.cuh>

namespace gdn_cuda::ssd {

template <SsdBackwardConfig kConfig>
struct BackwardInputsRole : Lane {
    using Plan = SsdBackwardPlan<kConfig>;
    static constexpr int kStages = Plan::kStages;
    static constexpr DType kIo = kConfig.io;

    Plan& shared;
    const SsdBackwardArgs& args;
    const SsdChunkWork& work;
    HeadSums found;  // over the head's row tiles so far

    __device__ __forceinline__ BackwardInputsRole(Plan& shared, const SsdBackwardArgs& args)
        : shared(shared), args(args), work(shared.work) {
        find_lane();
    }
    // Loads tiles, by load(barrier), whose first ones have rows of tokens, and clears those past the sequence: the next one's
    // tokens, which may be infinite or NaN. By a warp.
    template <class Load>
    __device__ __forceinline__ void load_tiles(unsigned long long& full, int bytes, SwizzledTile* first, int tiles,
                                               unsigned& parity, const Load& load) const {
        Barrier& arrived = barrier(work.has_tail ? shared.tail_full : full);
        if (lane == 0) {
            arrived.arrive_and_expect_tx(bytes);
            load(arrived);
        }
        if (!work.has_tail) return;
        arrived.wait(parity);
        parity ^= 1;
        for (int i = lane; i < (kChunk - work.count) * tiles * 8; i += 32)
            store_shared(row_vector(tile_row(first[i / 8 % tiles].bytes, work.count + i / 8 / tiles), i % 8), uint4{});
        cutlass::arch::fence_view_async_shared();
        __syncwarp();
        if (lane == 0) barrier(full).arrive();
    }
    __device__ __forceinline__ void load_group(unsigned& parity) const {
        constexpr int kTiles = kConfig.state_tiles();
        load_tiles(shared.group_full, 2 * sizeof(shared.C), shared.C, 2 * kTiles, parity, [&](Barrier& full) {
            for (int tile = 0; tile < kTiles; ++tile) {
                const TileAt from{tile * kTileElements, work.group, static_cast<int>(work.place.start) + work.place.first,
                                  work.place.batch};
                tma_load(shared.C[tile].bytes, args.C, from, full);
                tma_load(shared.B[tile].bytes, args.B, from, full);
            }
        });
    }
    __device__ __forceinline__ void load_stage(int tile, unsigned& parity) const {
        const PipelineStage<kStages> at(tile);
        auto& stage = shared.stages[at.index];
        barrier(shared.stage_empty[at.index]).wait(at.parity ^ 1);
        const int head = head_of(args, work, tile), row = row_of(args, work, tile);
        load_tiles(shared.stage_full[at.index], sizeof(stage), &stage.x, 2, parity, [&](Barrier& full) {
            const TileAt from{row, head, static_cast<int>(work.place.start) + work.place.first, work.place.batch};
            tma_load(stage.x.bytes, args.x, from, full);
            tma_load(stage.dy.bytes, args.out_gradient, from, full);
            for (int i = 0; i < kConfig.state_tiles(); ++i) {
                const TileAt states_from{i * kTileElements, head, row, work.slot};
                tma_load(stage.states[i].bytes, args.states, states_from, full);
                tma_load(stage.gradients[i].bytes, args.gradients, states_from, full);
            }
        });
    }

    // A head's steps in the chunk, in flight.
    struct Loaded {
        float2 gate, delta;
        float D;
    };
    __device__ __forceinline__ Loaded load_steps(int tile) const {
        const int head = head_of(args, work, tile);
        const ChunkSteps& from = args.steps[static_cast<i64>(work.slot) * args.heads + head];
        return {reinterpret_cast<const float2*>(from.gate)[lane], reinterpret_cast<const float2*>(from.delta)[lane],
                args.D.values.data == nullptr ? 0.f : load_float(args.D.values, head * args.D.head)};
    }
    // Into the stage that load_stage has waited for.
    __device__ __forceinline__ void store_factors(int tile, const Loaded& loaded) const {
        const PipelineStage<kStages> at(tile);
        const auto [gate, delta, D] = loaded;
        const float end = __shfl_sync(0xffffffffu, gate.y, 31);
        auto& factors = shared.factors[at.index];
        const auto store = [&](float(&to)[kChunk], float2 pair) { reinterpret_cast<float2*>(to)[lane] = pair; };
        store(factors.gate, gate);
        store(factors.delta, delta);
        store(factors.before, {exp2_fast(gate.x), exp2_fast(gate.y)});
        store(factors.after, {exp2_fast(end - gate.x), exp2_fast(end - gate.y)});
        if (lane == 0) factors.decay = exp2_fast(end), factors.D = D;
        __syncwarp();
        if (lane == 0) barrier(shared.factors_full[at.index]).arrive();
    }
    __device__ __forceinline__ static void add(float2& to, const float (&from)[kChunk], int lane) {
        const float2 more = pair_at(&from[2 * lane]);
        to.x += more.x, to.y += more.y;
    }
    // Adds a row tile's sums, and after a head's last one stores the head's gradients.
    __device__ __forceinline__ void use_sums(int tile) {
        const PipelineStage<kStages> at(tile);
        const int head = head_of(args, work, tile);
        const HeadInputs inputs(args, work, head, lane);
        barrier(shared.sums_full[at.index]).wait(at.parity);
        const auto& sums = shared.sums[at.index];
        if (row_of(args, work, tile) == 0) found = {};
        add(found.read, sums.read, lane);
        add(found.written, sums.written, lane);
        add(found.scaled, sums.scaled, lane);
        for (const auto& row : sums.across) add(found.across, row, lane);
        found.states += sums.states[0] + sums.states[1];
        found.D += (sums.D[0] + sums.D[1]) + (sums.D[2] + sums.D[3]);
        const float decay = shared.factors[at.index].decay;
        const float2 delta = pair_at(&shared.factors[at.index].delta[2 * lane]);
        __syncwarp();
        if (lane == 0) {
            barrier(shared.sums_empty[at.index]).arrive();
            barrier(shared.stage_empty[at.index]).arrive();
        }
        if (row_of(args, work, tile) + kTileRows >= args.channels)
            store_step_gradients(args, work, head, inputs, found, delta, decay, lane);
    }
    // By the last two warps.
    __device__ __forceinline__ void multiply_states(int tile) const {
        const PipelineStage<kStages> at(tile);
        barrier(shared.stage_full[at.index]).wait(at.parity);
        barrier(shared.sums_empty[at.index]).wait(at.parity ^ 1);
        const auto& stage = shared.stages[at.index];
        constexpr int kVectors = sizeof(stage.states) / 16;
        float sum = 0.f;
#pragma unroll 4
        for (int i = thread - 64; i < kVectors; i += 64) {
            const uint4 a = reinterpret_cast<const uint4*>(stage.states)[i],
                        b = reinterpret_cast<const uint4*>(stage.gradients)[i];
            const unsigned left[4] = {a.x, a.y, a.z, a.w}, right[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                const float2 x = unpack<kIo>(left[k]), y = unpack<kIo>(right[k]);
                sum = fmaf(x.x, y.x, fmaf(x.y, y.y, sum));
            }
        }
#pragma unroll
        for (int step = 1; step < 32; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
        if (lane == 0) {
            shared.sums[at.index].states[warp - 2] = sum;
            barrier(shared.sums_full[at.index]).arrive();
            barrier(shared.stage_empty[at.index]).arrive();
        }
    }
    __device__ __forceinline__ void run() {
        if (warp == 0) {
            unsigned parity = 0;
            load_group(parity);
#pragma unroll 1
            for (int tile = 0; tile < work.tiles; ++tile) {
                const Loaded loaded = load_steps(tile);
                load_stage(tile, parity);
                store_factors(tile, loaded);
            }
        } else if (warp == 1) {
#pragma unroll 1
            for (int tile = 0; tile < work.tiles; ++tile) use_sums(tile);
        } else if (warp > 1) {
#pragma unroll 1
            for (int tile = 0; tile < work.tiles; ++tile) multiply_states(tile);
        }
    }
};

}  // namespace gdn_cuda::ssd
