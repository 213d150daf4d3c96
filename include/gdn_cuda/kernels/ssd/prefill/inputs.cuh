// The inputs role: one warpgroup that runs ahead. Its first warp issues the TMA loads; a further one for each row tile derives a
// head's factors from dt.
#pragma once

#include <gdn_cuda/kernels/common/raw_element.cuh>
#include <gdn_cuda/kernels/ssd/prefill/work.cuh>

namespace gdn_cuda::ssd {

using gdn::kLog2e;
using gdn::kLowestGateLog2;

template <SsdConfig kConfig>
struct InputsRole : Lane {
    using Plan = SsdPlan<kConfig>;
    static constexpr int kStages = kConfig.stages();

    Plan& shared;
    const SsdArgs& args;
    const SsdWork& work;
    RawElement dt[2];              // tokens 2 lane and 2 lane + 1 of the next chunk
    float bias = 0.f, rate = 0.f;  // the warp's head adds bias to dt, and decays by 2^(rate δ)

    __device__ __forceinline__ InputsRole(Plan& shared, const SsdArgs& args) : shared(shared), args(args), work(shared.work) {
        find_lane();
    }

    // By one thread.
    __device__ __forceinline__ void load_tiles(int step) const {
        const PipelineStage<kStages> at(step);
        const int chunk = work.chunk_at(step);
        const bool has_output = step >= work.first_output;
        auto& stage = stage_at(shared, at.index);
        Barrier& full = barrier(shared.stage_full[at.index]);
        const int tiles = has_output ? kConfig.stage_tiles(work.tiles) : kConfig.state_tiles() + work.tiles;
        full.arrive_and_expect_tx(tiles * static_cast<int>(sizeof(SwizzledTile)));
        for (int tile = 0; tile < kConfig.state_tiles(); ++tile) {
            const TileAt from = tile_at(work, chunk, work.group, tile * kTileElements);
            if (has_output) tma_load(stage.C[tile].bytes, args.C, from, full);
            tma_load(stage.B[tile].bytes, args.B, from, full);
        }
        for (int i = 0; i < work.tiles; ++i) {
            const TileAt from = tile_at(work, chunk, work.row_tiles[i].head, work.row_tiles[i].first_row);
            tma_load(stage.x[i].bytes, args.x, from, full);
            if constexpr (kConfig.gated)
                if (has_output) tma_load(stage.z[i].bytes, args.z, from, full);
        }
    }
    // Into the stage that an earlier step has left. By one thread.
    __device__ __forceinline__ void load_step(int step) const {
        const PipelineStage<kStages> at(step);
        barrier(shared.stage_empty[at.index]).wait(at.parity ^ 1);
        load_tiles(step);
    }

    // ---- Factors

    __device__ __forceinline__ int tile() const { return warp - 1; }
    __device__ __forceinline__ const SsdRowTile& row_tile() const { return work.row_tiles[tile()]; }
    __device__ __forceinline__ void load_head() {
        const int head = row_tile().head;
        if (args.dt_bias.values.data != nullptr) bias = load_float(args.dt_bias.values, head * args.dt_bias.head);
        rate = load_float(args.A.values, head * args.A.head) * kLog2e;
    }
    __device__ __forceinline__ void load_dt(int step) {
        dt[0] = dt[1] = {};
        if (step >= work.steps) return;
        const int chunk = work.chunk_at(step);
        const int first = 2 * lane, count = tokens_in(work, chunk);
        const i64 at = work.batch * args.dt_batch + (work.start + chunk * kChunk + first) * args.dt_token +
                       row_tile().head * args.dt_head;
        if (first < count) dt[0].load(args.dt, at);
        if (first + 1 < count) dt[1].load(args.dt, at + args.dt_token);
    }
    __device__ __forceinline__ float delta_of(int i, bool exists) const {
        float x = dt[i].to_float(args.dt.type) + bias;
        if (args.softplus) x = softplus(x);
        x = x < args.lowest ? args.lowest : x > args.highest ? args.highest : x;  // NaN stays
        return exists ? x : 0.f;
    }
    // Whether the state is zeroed before a token. Loaded where it is used: few calls have such tokens.
    __device__ __forceinline__ bool is_reset(int token) const {
        if (args.seq_idx == nullptr || token >= work.length) return false;
        const int* const at = args.seq_idx + work.batch * args.seq_idx_batch + token;
        return *at != (token == 0 ? 0 : at[-1]);
    }
    // log2 of a token's decay, clamped as in chunked/factors.cuh; what is clamped decays to 0.
    __device__ __forceinline__ float gate_of(float delta, int token) const {
        return is_reset(token) ? kLowestGateLog2 : at_least(delta * rate, kLowestGateLog2);
    }
    // Tokens past the end have a δ of 0: nothing decays, and nothing is added.
    __device__ __forceinline__ void store_factors(int chunk, int slot) const {
        const int count = tokens_in(work, chunk);
        const float2 delta = {delta_of(0, 2 * lane < count), delta_of(1, 2 * lane + 1 < count)};
        const int token = chunk * kChunk + 2 * lane;
        const float first = gate_of(delta.x, token);
        float sum = first + gate_of(delta.y, token + 1);
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const float before = __shfl_up_sync(0xffffffffu, sum, step);
            if (lane >= step) sum += before;
        }
        const float end = __shfl_sync(0xffffffffu, sum, 31);
        const float before = __shfl_up_sync(0xffffffffu, sum, 1);
        const float2 gate = {first + (lane == 0 ? 0.f : before), sum};
        auto& factors = shared.factors[slot][tile()];
        reinterpret_cast<float2*>(factors.gate)[lane] = gate;
        reinterpret_cast<float2*>(factors.delta)[lane] = delta;
        reinterpret_cast<float2*>(factors.before)[lane] = {exp2_fast(gate.x), exp2_fast(gate.y)};
        reinterpret_cast<float2*>(factors.after)[lane] = {exp2_fast(end - gate.x) * delta.x, exp2_fast(end - gate.y) * delta.y};
#pragma unroll
        for (int block = 1; block < 4; ++block) {
            const float border = __shfl_sync(0xffffffffu, gate.y, 8 * block - 1);
            if (lane < 8 * block)
                reinterpret_cast<float2*>(factors.column[block - 1])[lane] = {exp2_fast(border - gate.x) * delta.x,
                                                                              exp2_fast(border - gate.y) * delta.y};
            else if (lane < 8 * block + 8)
                reinterpret_cast<float2*>(factors.row)[lane] = {exp2_fast(gate.x - border), exp2_fast(gate.y - border)};
        }
        // Beyond this a decay between two tokens may be 0.
        const bool resets = __any_sync(0xffffffffu, !(fabsf(gate.x) < 60.f && fabsf(gate.y) < 60.f));
        if (lane == 0) shared.ends[slot][tile()] = {exp2_fast(end), resets};
    }
    __device__ __forceinline__ bool has_head() const {
        return warp > 0 && tile() < work.tiles && row_tile().scores == tile();
    }
    __device__ __forceinline__ void begin_factors() {
        load_head();
        load_dt(0);
    }
    __device__ __forceinline__ void make_factors(int step) {
        const PipelineStage<kFactorSlots> slot(step);
        barrier(shared.factors_empty[slot.index]).wait(slot.parity ^ 1);
        store_factors(work.chunk_at(step), slot.index);
        load_dt(step + 1);
        __syncwarp();
        if (lane == 0) barrier(shared.factors_full[slot.index]).arrive();
    }

    __device__ __forceinline__ void run() {
        if (thread == 0)
            for (int step = 0; step < work.steps; ++step) load_step(step);
        if (!has_head()) return;
        begin_factors();
#pragma unroll 1
        for (int step = 0; step < work.steps; ++step) make_factors(step);
    }

    // Or among the scores role's work: before its first step, before it needs a step's factors, and after a step.
    __device__ __forceinline__ void begin() {
        if (thread == 0)
            for (int step = 0; step < min(kStages, work.steps); ++step) load_step(step);
        if (has_head()) begin_factors();
    }
    __device__ __forceinline__ void before_scores(int step) {
        find_lane();
        if (has_head()) make_factors(step);
    }
    __device__ __forceinline__ void after_scores(int step) {
        if (step == 0 || step - 1 + kStages >= work.steps) return;
        if (thread == 0) load_step(step - 1 + kStages);
        __syncwarp();
    }
};

}  // namespace gdn_cuda::ssd
