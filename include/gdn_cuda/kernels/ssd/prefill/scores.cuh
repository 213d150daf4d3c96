// The scores role: one warpgroup that runs ahead. For each chunk it issues the TMA loads, derives the factors of all heads from
// dt, multiplies C B^T once for the group, and forms M of each head from it.
#pragma once

#include <gdn_cuda/kernels/chunked/token_products.cuh>
#include <gdn_cuda/kernels/common/raw_element.cuh>
#include <gdn_cuda/kernels/common/shared.cuh>
#include <gdn_cuda/kernels/ssd/prefill/work.cuh>

namespace gdn_cuda::ssd {

using gdn::kLog2e;
using gdn::kLowestGateLog2;

template <SsdConfig kConfig>
struct ScoresRole : Lane {
    using Plan = SsdPlan<kConfig>;
    static constexpr int kStages = kConfig.stages(), kSlots = kConfig.slots();

    Plan& shared;
    const SsdArgs& args;
    const SsdWork& work;
    RawElement dt[2];              // tokens 2 lane and 2 lane + 1 of the next chunk; a warp has a head
    float bias = 0.f, rate = 0.f;  // the warp's head adds bias to dt, and decays by 2^(rate δ)

    __device__ __forceinline__ ScoresRole(Plan& shared, const SsdArgs& args) : shared(shared), args(args), work(shared.work) {
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
    // Whether this warp has the factors of a head: that of row tile `warp`.
    __device__ __forceinline__ bool has_head() const { return warp < work.tiles && work.row_tiles[warp].scores == warp; }
    __device__ __forceinline__ void load_head() {
        if (!has_head()) return;
        const int head = work.row_tiles[warp].head;
        if (args.dt_bias.values.data != nullptr) bias = load_float(args.dt_bias.values, head * args.dt_bias.head);
        rate = load_float(args.A.values, head * args.A.head) * kLog2e;
    }
    __device__ __forceinline__ void load_dt(int step) {
        dt[0] = dt[1] = {};
        if (!has_head() || step >= work.steps) return;
        const int chunk = work.chunk_at(step);
        const int first = 2 * lane, count = tokens_in(work, chunk);
        const i64 at = work.batch * args.dt_batch + (work.start + chunk * kChunk + first) * args.dt_token +
                       work.row_tiles[warp].head * args.dt_head;
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
    // Each warp stores those of its head. Tokens past the end have a δ of 0: nothing decays, and nothing is added.
    __device__ __forceinline__ void store_factors(int chunk, int slot) const {
        if (!has_head()) return;
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
        auto& factors = shared.factors[slot][warp];
        reinterpret_cast<float2*>(factors.gate)[lane] = gate;
        reinterpret_cast<float2*>(factors.delta)[lane] = delta;
        reinterpret_cast<float2*>(factors.before)[lane] = {exp2_fast(gate.x), exp2_fast(gate.y)};
        reinterpret_cast<float2*>(factors.after)[lane] = {exp2_fast(end - gate.x) * delta.x, exp2_fast(end - gate.y) * delta.y};
        if (lane == 0) shared.decay[slot][warp] = exp2_fast(end);
    }
    // Zeroes what a chunk has past the end of a packed sequence: the next one's tokens, which may be infinite or NaN.
    __device__ __forceinline__ void clear_tail(int chunk, int stage_index) const {
        auto& stage = stage_at(shared, stage_index);
        const int count = tokens_in(work, chunk), tiles = kConfig.state_tiles() + work.tiles;
#pragma unroll 1
        for (int i = thread; i < (kChunk - count) * tiles * 8; i += kWarpgroup) {
            const int row = count + i / (tiles * 8), tile = i % (tiles * 8) / 8;
            SwizzledTile& cleared = tile < kConfig.state_tiles() ? stage.B[tile] : stage.x[tile - kConfig.state_tiles()];
            store_shared(row_vector(tile_row(cleared.bytes, row), i % 8), uint4{});
        }
        cutlass::arch::fence_view_async_shared();
        warpgroup_sync();
    }
    // M = C B^T exp(G_i - G_j) δ_j up to the diagonal. A decay of 0 is a select: it stops infinities and NaN.
    __device__ __forceinline__ void store_scores(const float (&products)[32], int slot, int tile) const {
        const auto& factors = shared.factors[slot][tile];
        const float row[2] = {factors.gate[16 * warp + g], factors.gate[16 * warp + g + 8]};
        gdn::store_lower<kConfig.io, false>(*this, shared.scores[slot][tile], 0, [&](int i) {
            const int column = 8 * (i / 4) + 2 * t + i % 2;
            const float decay = exp2_fast(row[i / 2 % 2] - factors.gate[column]);
            return decay == 0.f ? 0.f : products[i] * decay * factors.delta[column];
        });
    }
    __device__ __forceinline__ void clear_scores() const {
        auto* vectors = reinterpret_cast<uint4*>(shared.scores);
        for (int i = thread; i < static_cast<int>(sizeof(shared.scores) / sizeof(uint4)); i += kWarpgroup) vectors[i] = {};
        warpgroup_sync();
    }

    __device__ __forceinline__ void run() {
        clear_scores();
        if (thread == 0)
            for (int step = 0; step < min(kStages, work.steps); ++step) load_tiles(step);
        load_head();
        load_dt(0);
#pragma unroll 1
        for (int step = 0; step < work.steps; ++step) {
            find_lane();
            const PipelineStage<kStages> current(step);
            const PipelineStage<kSlots> slot(step);
            const int chunk = work.chunk_at(step);
            auto& stage = stage_at(shared, current.index);
            barrier(shared.stage_full[current.index]).wait(current.parity);
            if (has_tail(args, work, chunk)) [[unlikely]]
                clear_tail(chunk, current.index);
            const auto prepare_factors = [&] {
                barrier(shared.scores_empty[slot.index]).wait(slot.parity ^ 1);
                store_factors(chunk, slot.index);
                load_dt(step + 1);
            };
            if (step >= work.first_output) {
                float products[32];
                start_group_products(products, stage.C, stage.B);
                prepare_factors();
                warpgroup_sync();
                wait_for_product(products);
#pragma unroll 1
                for (int i = 0; i < work.tiles; ++i)
                    if (work.row_tiles[i].scores == i) store_scores(products, slot.index, i);
                cutlass::arch::fence_view_async_shared();
            } else {
                prepare_factors();
            }
            barrier(shared.scores_full[slot.index]).arrive();
            if (step > 0 && step - 1 + kStages < work.steps) {
                if (thread == 0) {
                    const PipelineStage<kStages> last(step - 1);
                    barrier(shared.stage_empty[last.index]).wait(last.parity);
                    load_tiles(step - 1 + kStages);
                }
                __syncwarp();
            }
        }
    }
    __device__ __forceinline__ static void start_group_products(float (&products)[32], const SwizzledTile* C,
                                                                const SwizzledTile* B) {
        const auto left = tile_operand(C, 0), right = tile_operand(B, 0);
        cute::warpgroup_arrive();
#pragma unroll
        for (int step = 0; step < kConfig.states / 16; ++step)
            Product<kConfig.io, 64, true>::run(products, left + k_major_step(step), right + k_major_step(step), step > 0);
        cute::warpgroup_commit_batch();
    }
};

}  // namespace gdn_cuda::ssd
