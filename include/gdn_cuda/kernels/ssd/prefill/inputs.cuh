// The inputs role: one warpgroup that runs ahead, each warp by itself. The first issues the TMA loads, the last the stores, and
// one for each head derives the factors of decays from ssd/steps.
#pragma once

#include <gdn_cuda/kernels/common/cp_async.cuh>
#include <gdn_cuda/kernels/common/numeric.cuh>
#include <gdn_cuda/kernels/common/shared.cuh>
#include <gdn_cuda/kernels/ssd/by_token.cuh>
#include <gdn_cuda/kernels/ssd/prefill/work.cuh>

namespace gdn_cuda::ssd {

template <SsdConfig kConfig>
struct InputsRole : Lane {
    using Plan = SsdPlan<kConfig>;
    static constexpr int kStages = kConfig.stages();

    Plan& shared;
    const SsdArgs& args;
    const SsdWork& work;

    __device__ __forceinline__ InputsRole(Plan& shared, const SsdArgs& args) : shared(shared), args(args), work(shared.work) {
        find_lane();
    }

    // By one thread.
    __device__ __forceinline__ void load_tiles(int step, const SsdPass& pass) const {
        const PipelineStage<kStages> at(step);
        const int token = tokens_of(args, work, work.chunk_at(step)).first;
        const bool has_output = outputs_at<kConfig>(work, step);
        auto& stage = stage_at(shared, at.index);
        Barrier& full = barrier(shared.stage_full[at.index]);
        const int tiles = has_output ? kConfig.stage_tiles(work.tiles) : kConfig.state_tiles() + work.tiles;
        full.arrive_and_expect_tx(tiles * static_cast<int>(sizeof(SwizzledTile)));
        for (int tile = 0; tile < kConfig.state_tiles(); ++tile) {
            const TileAt from = tile_at(work, token, work.group, tile * kTileElements);
            if (has_output) tma_load(stage.C[tile].bytes, args.C, from, full);
            tma_load(stage.B[tile].bytes, pass.B, from, full);
        }
        for (int i = 0; i < work.tiles; ++i) {
            const TileAt from = tile_at(work, token, work.row_tiles[i].head, work.row_tiles[i].first_row);
            tma_load(stage.x[i].bytes, pass.x, from, full);
            if constexpr (kConfig.gated)
                if (has_output) tma_load(stage.z[i].bytes, args.z, from, full);
        }
    }
    // Into the stage that an earlier step has left. By one thread.
    __device__ __forceinline__ void load_step(int step) const {
        const PipelineStage<kStages> at(step);
        barrier(shared.stage_empty[at.index]).wait(at.parity ^ 1);
        if (work.pass == 0)  // no address in a register
            load_tiles(step, args.passes[0]);
        else
            load_tiles(step, args.passes[1]);
    }

    // Stores a step's outputs and frees its stage. By one warp.
    __device__ __forceinline__ void retire(int step) const {
        const PipelineStage<kStages> at(step);
        barrier(shared.stage_used[at.index]).wait(at.parity);
        if (outputs_at<kConfig>(work, step)) store_outputs(stage_at(shared, at.index), work.chunk_at(step));
        __syncwarp();  // a lane that still waits could miss the phase, once the stage is used again
        if (lane == 0) barrier(shared.stage_empty[at.index]).arrive();
    }
    __device__ __forceinline__ void store_outputs(const typename Plan::Stage& stage, int chunk) const {
        const ChunkTokens tokens = tokens_of(args, work, chunk);
        if (has_tail(args, work, chunk)) [[unlikely]] {
            for (int i = 0; i < work.tiles; ++i) store_tail(stage.x[i], tokens, work.row_tiles[i]);
            __syncwarp();
        } else if (lane == 0) {
            for (int i = 0; i < work.tiles; ++i)
                tma_store(args.out, tile_at(work, tokens.first, work.row_tiles[i].head, work.row_tiles[i].first_row),
                          stage.x[i].bytes);
            cute::tma_store_arrive();
            cute::tma_store_wait<0>();
        }
    }
    // Without TMA, which would overwrite what follows the chunk.
    __device__ __forceinline__ void store_tail(const SwizzledTile& tile, const ChunkTokens& tokens,
                                               const SsdRowTile& rows) const {
        using Io = Storage<kConfig.io>;
        Io* const to = static_cast<Io*>(args.out_data) + work.batch * args.out_batch + tokens.first * args.out_token +
                       rows.head * args.out_head + rows.first_row;
#pragma unroll 1
        for (int i = lane; i < tokens.count * 8; i += 32)
            if (rows.first_row + i % 8 * 8 < args.channels)
                *reinterpret_cast<uint4*>(to + i / 8 * args.out_token + i % 8 * 8) =
                    load_shared(row_vector(tile_row(tile.bytes, i / 8), i % 8));
    }

    // ---- Factors

    // Heads have a warp each, or one head has two warps that take turns.
    __device__ __forceinline__ bool takes_turns() const { return kConfig.has_inputs_role() && work.heads() == 1; }
    __device__ __forceinline__ bool has_head() const {
        return warp > 0 && (takes_turns() ? warp < 3 : warp - 1 < work.heads());
    }
    __device__ __forceinline__ int tile() const { return takes_turns() ? 0 : warp - 1; }
    // Into the slot that an earlier step has left.
    __device__ __forceinline__ void load_steps(int step) const {
        if (step < work.steps) {
            const PipelineStage<kFactorSlots> slot(step);
            const ChunkSteps& from =
                args.steps[(work.chunks_before + work.chunk_at(step)) * args.heads + work.row_tiles[tile()].head];
            barrier(shared.factors_empty[slot.index]).wait(slot.parity ^ 1);
            cp_async_16_zfill(shared_address(&shared.factors[slot.index][tile()].steps) + 16 * lane,
                              reinterpret_cast<const uint4*>(&from) + lane, true);
        }
        cp_async_fence();
    }
    // Of each token, from the sums.
    __device__ __forceinline__ float2 own_gates(float2 gate) const {
        const float last = __shfl_up_sync(0xffffffffu, gate.y, 1);
        return {gate.x - (lane == 0 ? 0.f : last), gate.y - gate.x};
    }
    __device__ __forceinline__ void store_end(int slot, float end, float2 own, typename Plan::Resets resets) const {
        const bool any = __any_sync(0xffffffffu, is_reset(fminf(own.x, own.y)));
        if (lane == 0) shared.ends[slot][tile()] = {any ? -0.f : exp2_fast(end), resets};
    }
    // Of a step without outputs: what the state needs.
    __device__ __forceinline__ void store_state_factors(int slot) const {
        auto& factors = shared.factors[slot][tile()];
        const float2 gate = pair_at(factors.steps.gate + 2 * lane), delta = pair_at(factors.steps.delta + 2 * lane);
        const float end = __shfl_sync(0xffffffffu, gate.y, 31);
        float2 after = {exp2_fast(gate.x), exp2_fast(gate.y)};
        if (work.pass == 0) after = {exp2_fast(end - gate.x) * delta.x, exp2_fast(end - gate.y) * delta.y};
        reinterpret_cast<float2*>(factors.after)[lane] = after;
        const float2 own = own_gates(gate);
        store_end(slot, end, own, Plan::Resets::none);
    }
    __device__ __forceinline__ void store_factors(int slot) const {
        auto& factors = shared.factors[slot][tile()];
        const float2 gate = pair_at(factors.steps.gate + 2 * lane), delta = pair_at(factors.steps.delta + 2 * lane);
        const float end = __shfl_sync(0xffffffffu, gate.y, 31);
        // From the border before the lane's block of 16 tokens, and to its end.
        const float previous = __shfl_sync(0xffffffffu, gate.y, lane < 8 ? 0 : (lane & 24) - 1);
        const float border = lane < 8 ? 0.f : previous;
        const float block_end = __shfl_sync(0xffffffffu, gate.y, lane | 7);
        const float2 row = {exp2_fast(gate.x - border), exp2_fast(gate.y - border)};
        const float2 column = {exp2_fast(block_end - gate.x), exp2_fast(block_end - gate.y)};
        const float2 added = {column.x * delta.x, column.y * delta.y};
        const float to_border = exp2_fast(border), from_block = exp2_fast(end - block_end);
        reinterpret_cast<float2*>(factors.row)[lane] = row;
        reinterpret_cast<float2*>(factors.column)[lane] = column;
        reinterpret_cast<float2*>(factors.added)[lane] = added;
        const float2 before = {row.x * to_border, row.y * to_border};
        reinterpret_cast<float2*>(factors.before)[lane] = before;
        reinterpret_cast<float2*>(factors.after)[lane] = {added.x * from_block, added.y * from_block};
        // Of blocks 2 and 0, 3 and 0, 3 and 1.
        const float later = __shfl_sync(0xffffffffu, gate.y, lane < 2 ? 15 : 23);
        const float earlier = __shfl_sync(0xffffffffu, gate.y, lane < 3 ? 7 : 15);
        if (lane < 4) factors.between[lane] = lane == 0 ? 1.f : exp2_fast(later - earlier);
        // Beyond 2^60 and 2^-60 a decay between two tokens may be 0, or its factors overflow.
        const bool all_near = __all_sync(0xffffffffu, fabsf(gate.x) < 60.f && fabsf(gate.y) < 60.f);
        const float2 own = own_gates(gate);
        const bool grows = __any_sync(0xffffffffu, fmaxf(own.x, own.y) > 0.01f);
        const bool decays = __any_sync(0xffffffffu, fminf(own.x, own.y) < -0.01f);
        store_end(slot, end, own, all_near ? Plan::Resets::none : grows && decays ? Plan::Resets::mixed : Plan::Resets::some);
    }
    // How many steps what is loaded is ahead of what is made of it: where two warps take turns, that is one of each.
    static constexpr int kAhead = kConfig.has_inputs_role() ? 2 : 1;

    __device__ __forceinline__ void make_factors(int step) const {
        load_steps(step + kAhead);
        takes_turns() ? cp_async_wait<1>() : cp_async_wait<kAhead>();
        __syncwarp();  // what other lanes have loaded
        const PipelineStage<kFactorSlots> slot(step);
        outputs_at<kConfig>(work, step) ? store_factors(slot.index) : store_state_factors(slot.index);
        __syncwarp();
        if (lane == 0) barrier(shared.factors_full[slot.index]).arrive();
    }
    __device__ __forceinline__ void run_factors() {
        const int first = takes_turns() ? warp - 1 : 0, stride = takes_turns() ? 2 : 1;
        for (int step = first; step < first + kAhead; step += stride) load_steps(step);
#pragma unroll 1
        for (int step = first; step < work.steps; step += stride) {
            find_lane();  // to save registers
            make_factors(step);
        }
    }

    __device__ __forceinline__ void run() {
        if (thread == 0) {
            for (int step = 0; step < work.steps; ++step) load_step(step);
        } else if (warp == 3) {
            for (int step = 0; step < work.steps; ++step) retire(step);
        } else if (has_head()) {
            run_factors();
        }
    }

    // Or among the scores role's work: before its first step, and after each.
    __device__ __forceinline__ void begin() {
        if (thread == 0)
            for (int step = 0; step < min(kStages, work.steps); ++step) load_step(step);
        if (!has_head() || work.steps == 0) return;
        load_steps(0);
        make_factors(0);
    }
    __device__ __forceinline__ void follow(int step) {
        find_lane();
        if (has_head() && step + 1 < work.steps) make_factors(step + 1);
        if (warp > 0) return;
        if (step > 0) retire_and_load(step - 1);
        if (step + 1 == work.steps) retire(step);
    }
    __device__ __forceinline__ void retire_and_load(int step) const {
        retire(step);
        if (thread == 0 && step + kStages < work.steps) load_step(step + kStages);
        __syncwarp();
    }
};

}  // namespace gdn_cuda::ssd
