// The rows role: a warpgroup that owns 64 channels of a head's state, keeps them in registers and updates them chunk by chunk.
// Products are transposed (channels x tokens), so that the state and x are left operands in registers.
//
//     y = exp(G) S C^T + x^T M^T + D x      S <- exp(G_C) S + (δ exp(G_C - G) x)^T B
#pragma once

#include <gdn_cuda/kernels/chunked/products.cuh>
#include <gdn_cuda/kernels/common/silu.cuh>
#include <gdn_cuda/kernels/common/stmatrix.cuh>
#include <gdn_cuda/kernels/ssd/by_token.cuh>
#include <gdn_cuda/kernels/ssd/prefill/work.cuh>
#include <gdn_cuda/kernels/ssd/state_rows.cuh>

namespace gdn_cuda::ssd {

using gdn::for_each_token_pair;
using gdn::kTokenSteps;
using gdn::TokenFragment;
using gdn::TokenOperand;

template <SsdConfig kConfig>
struct RowsLane : Lane {
    __device__ __forceinline__ int tile() const { return group - kConfig.scores_group() - 1; }
    __device__ __forceinline__ void tile_sync() const { this->warpgroup_sync(); }
    __device__ __forceinline__ bool any_of_tile(bool found) const { return this->any_of_warpgroup(found); }
};

template <SsdConfig kConfig>
struct RowsRole : StateRows<kConfig.states, RowsLane<kConfig>> {
    using Plan = SsdPlan<kConfig>;
    using Base = StateRows<kConfig.states, RowsLane<kConfig>>;
    using Base::args, Base::work, Base::state, Base::kParts, Base::kPartColumns, Base::lane, Base::t, Base::tile, Base::pass;
    static constexpr DType kIo = kConfig.io;
    static constexpr int kStages = kConfig.stages(), kSlots = kConfig.slots(), kStateTiles = kConfig.state_tiles();
    static constexpr bool kGated = kConfig.gated;

    Plan& shared;

    __device__ __forceinline__ RowsRole(Plan& shared, const SsdArgs& args) : Base(args, shared.work), shared(shared) {
        this->find_lane();
    }
    __device__ __forceinline__ int scores() const { return work.row_tiles[tile()].scores; }

    // Whether registers hold what several products in flight need.
    static constexpr bool kOverlaps = kConfig.states <= 128;

    // y = S C^T with S rounded; tile by tile where registers do not hold all of S rounded.
    __device__ __forceinline__ void start_state_product(TokenFragment& y, const SwizzledTile* C) const {
        constexpr int kTiles = kOverlaps ? kConfig.state_tiles() : 1, kSteps = kTiles * kTileElements / 16,
                      kStepsOfPart = kPartColumns / 16;
#pragma unroll
        for (int tile = 0; tile < kConfig.state_tiles(); tile += kTiles) {
            unsigned rounded[kSteps][4];
#pragma unroll
            for (int step = 0; step < kSteps; ++step)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int of_state = tile * (kTileElements / 16) + step;
                    const auto& part = state[of_state / kStepsOfPart];
                    const int at = 8 * (of_state % kStepsOfPart) + 2 * i;
                    rounded[step][i] = pack<kIo>(part[at], part[at + 1]);
                }
            gdn::start_product<kIo>(y, rounded, C + tile, tile > 0);
            if (!kOverlaps) wait_for_product(y);
        }
    }
    // The factors of a pair of tokens, in the order of a left operand. Read where they are used, to save registers.
    __device__ __forceinline__ float2 factor_at(const float (&factors)[kChunk], int step, int i) const {
        return pair_at(&factors[16 * step + i / 2 * 8 + 2 * t]);
    }
    // A decay of 0 stops infinities and NaN of the state.
    __device__ __forceinline__ void clear_after_resets(TokenFragment& y, const float (&factors)[kChunk]) const {
        for_each_token_pair(y, [&](int step, int i, float& v, float& v_next) {
            const float2 factor = factor_at(factors, step, i);
            if (factor.x == 0.f) v = 0.f;
            if (factor.y == 0.f) v_next = 0.f;
        });
    }
    // y <- exp(G) y + D x, to which M x is added.
    __device__ __forceinline__ void add_x(TokenFragment& y, const TokenOperand& x, const float (&factors)[kChunk],
                                          const float (&D)[2]) const {
        for_each_token_pair(y, [&](int step, int i, float& v, float& v_next) {
            const float2 own = unpack<kIo>(x[step][i]), before = factor_at(factors, step, i);
            v = fmaf(v, before.x, D[i % 2] * own.x), v_next = fmaf(v_next, before.y, D[i % 2] * own.y);
        });
    }
    // δ exp(G_C - G) x.
    __device__ __forceinline__ void scale_x(TokenOperand& update, const TokenOperand& x, const float (&factors)[kChunk]) const {
#pragma unroll
        for (int step = 0; step < kTokenSteps; ++step)
#pragma unroll
            for (int i = 0; i < 4; ++i) update[step][i] = scaled(unpack<kIo>(x[step][i]), factor_at(factors, step, i));
    }
    __device__ __forceinline__ static unsigned scaled(float2 x, float2 factor) {
        return pack<kIo>(x.x * factor.x, x.y * factor.y);
    }
    // Times silu(z), rounded.
    __device__ __forceinline__ void finish(TokenOperand& rounded, TokenFragment& y, const SwizzledTile* gates) const {
        [[maybe_unused]] unsigned z[4];
        for_each_token_pair(y, [&](int step, int i, float v, float v_next) {
            if constexpr (kConfig.gated) {
                if (i == 0) ldmatrix_x4_trans(z, this->matrix_row(gates[tile()]) + step * kMnMajorStep);
                const float2 gate = unpack<kIo>(z[i]);
                v *= silu(gate.x), v_next *= silu(gate.y);
            }
            rounded[step][i] = pack<kIo>(v, v_next);
        });
    }
    __device__ __forceinline__ void write_tile(SwizzledTile& tile, const TokenOperand& y) const {
#pragma unroll
        for (int step = 0; step < kTokenSteps; ++step)
            stmatrix_x4_trans(this->matrix_row(tile) + step * kMnMajorStep, y[step][0], y[step][1], y[step][2], y[step][3]);
    }

    // ---- A step

    // S <- exp(G_C) S + (δ exp(G_C - G) x)^T B, which finish_update waits for; decayed already. After a decay of 0 the product
    // replaces S, whose infinities and NaN end so.
    __device__ __forceinline__ void start_update(const TokenOperand& update, const SwizzledTile* B, float decay) {
#pragma unroll
        for (int part = 0; part < kParts; ++part)
            gdn::start_product_mn<kIo>(state[part], update, B + part * (kPartColumns / kTileElements), decay != 0.f);
    }
    __device__ __forceinline__ void finish_update() {
#pragma unroll
        for (auto& part : state) wait_for_product(part);
    }
    // The warp has read what the step has.
    __device__ __forceinline__ void release(int step) const {
        __syncwarp();
        if (lane == 0) {
            barrier(shared.stage_used[PipelineStage<kStages>(step).index]).arrive();
            barrier(shared.scores_empty[PipelineStage<kSlots>(step).index]).arrive();
            barrier(shared.factors_empty[PipelineStage<kFactorSlots>(step).index]).arrive();
        }
    }
    // Takes a step token by token, if products would make NaN of it. `wait`: for what is in flight.
    template <bool kOutputs>
    __device__ __forceinline__ bool run_by_token(int step, const float (&D)[2], const auto& wait) {
        const int ready = PipelineStage<kFactorSlots>(step).index;
        if (__float_as_uint(shared.ends[ready][scores()].decay) != 0x80000000u) [[likely]]
            return false;
        this->find_lane();  // no address from the other path
        const PipelineStage<kSlots> slot(step);
        barrier(shared.scores_full[slot.index]).wait(slot.parity);  // what is past the chunk's end is cleared
        auto& stage = stage_at(shared, PipelineStage<kStages>(step).index);
        const ChunkTiles<SwizzledTile> chunk{stage.x[tile()], stage.z + (kConfig.gated ? tile() : 0), stage.B, stage.C,
                                             shared.factors[ready][scores()].steps};
        if (!is_not_finite(*this, chunk)) return false;
        wait();
        run_tokens<kOutputs>(*this, chunk, D);
        cutlass::arch::fence_view_async_shared();
        release(step);
        return true;
    }
    // Without outputs.
    __device__ __forceinline__ void run_state(int step, float& log_decay) {
        const PipelineStage<kStages> current(step);
        const PipelineStage<kSlots> slot(step);
        const PipelineStage<kFactorSlots> ready(step);
        auto& stage = stage_at(shared, current.index);
        const auto& factors = shared.factors[ready.index][scores()];
        TokenOperand update;
        barrier(shared.stage_full[current.index]).wait(current.parity);
        barrier(shared.scores_full[slot.index]).wait(slot.parity);
        const float no_D[2] = {};
        log_decay += factors.steps.gate[kChunk - 1];
        if (run_by_token<false>(step, no_D, [] {})) return;
        const float decay = shared.ends[ready.index][scores()].decay;
        this->decay_state(decay);
        gdn::load_operand(update, stage.x[tile()], *this);
        scale_x(update, update, factors.after);
        start_update(update, stage.B, decay);
        finish_update();
        release(step);
    }
    __device__ __forceinline__ void run_output(int step, const float (&D)[2]) {
        const PipelineStage<kStages> current(step);
        const PipelineStage<kSlots> slot(step);
        const PipelineStage<kFactorSlots> ready(step);
        auto& stage = stage_at(shared, current.index);
        SwizzledTile& own = stage.x[tile()];
        const auto& factors = shared.factors[ready.index][scores()];
        barrier(shared.stage_full[current.index]).wait(current.parity);
        TokenFragment y;
        TokenOperand x, update, rounded;
        start_state_product(y, stage.C);
        barrier(shared.factors_full[ready.index]).wait(ready.parity);
        if (run_by_token<true>(step, D, [&] { wait_for_product(y); })) return;
        if (has_tail(args, work, work.chunk_at(step))) [[unlikely]]  // of x, which the scores role clears
            barrier(shared.scores_full[slot.index]).wait(slot.parity);
        gdn::load_operand(x, own, *this);
        const auto [decay, resets] = shared.ends[ready.index][scores()];
        const auto update_state = [&] {
            if constexpr (kOverlaps)
                scale_x(update, x, factors.after);
            else {  // x is loaded again: registers of a product in flight cannot be read
                gdn::load_operand(update, own, *this);
                scale_x(update, update, factors.after);
            }
            this->decay_state(decay);
            start_update(update, stage.B, decay);
        };
        if constexpr (kOverlaps) {
            update_state();
            wait_for_product<1>(y);
        }
        if (resets != Plan::Resets::none) clear_after_resets(y, factors.before);
        add_x(y, x, factors.before, D);
        barrier(shared.scores_full[slot.index]).wait(slot.parity);
        gdn::start_product<kIo>(y, x, &shared.scores[slot.index][scores()], true);
        wait_for_product(y);
        finish(rounded, y, stage.z);
        if constexpr (!kOverlaps) update_state();
        write_tile(own, rounded);  // a warp has read x of the channels whose outputs it writes, and no others
        finish_update();
        cutlass::arch::fence_view_async_shared();  // NVRTC 12.9 ends with a segmentation fault where this is before the wait
        release(step);
    }

    // The steps without outputs. Returns the sum of δA in log2.
    __device__ __forceinline__ float run_states() {
        float log_decay = 0.f;
#pragma unroll 1
        for (int step = 0; step < work.first_own; ++step) {
            this->find_lane();
            run_state(step, log_decay);
        }
        return log_decay;
    }
    __device__ __forceinline__ void run_segment() {
        this->clear_state();
        this->store_segment(run_states());
    }
    __device__ __forceinline__ void run_summary() {
        if (!work.is_last()) return run_segment();
        const float before = this->load_state();
        this->store_summary(before, run_states());
    }
    // The warp's 16 rows of the state before a step's chunk, rounded.
    __device__ __forceinline__ void store_chunk_state(int step) {
        auto& tiles = shared.chunk_state[tile()];
        if (lane == 0) cute::tma_store_wait<0>();  // of the step before, until it has been read
        __syncwarp();
#pragma unroll
        for (int n = 0; n < kConfig.states / 8; n += 2) {
            const auto& part = state[8 * n / kPartColumns];
            const auto pair = [&](int i) {
                const int at = 4 * (n % (kPartColumns / 8)) + 2 * i;
                return pack<kIo>(part[at], part[at + 1]);
            };
            const unsigned to = tile_row(tiles[n / 8].bytes, kWarpRows * this->warp + lane % 16);
            stmatrix_x4(row_vector(to, n % 8 + lane / 16), pair(0), pair(1), pair(2), pair(3));
        }
        cutlass::arch::fence_view_async_shared();
        __syncwarp();
        if (lane > 0) return;
        const int chunk = static_cast<int>(work.chunks_before) + work.chunk_at(step), row = kWarpRows * this->warp;
        for (int i = 0; i < kConfig.state_tiles(); ++i)
            tma_store(pass().chunk_tiles, {i * kTileElements, this->head(), this->first_row() + row, chunk},
                      tiles[i].bytes + row * kTileElements * 2);
        cute::tma_store_arrive();
    }
    // The state before each chunk, in the order of the steps.
    __device__ __forceinline__ void store_chunk_states() {
        float unused = 0.f;
#pragma unroll 1
        for (int step = work.first_own; step < work.steps; ++step) {
            this->find_lane();
            store_chunk_state(step);
            run_state(step, unused);
        }
        if (lane == 0) cute::tma_store_wait<0>();
    }
    __device__ __forceinline__ void run_outputs() {
        this->store_before(work.first_own);
        const float D[2] = {this->D_of(this->my_row()), this->D_of(this->my_row() + 8)};
#pragma unroll 1
        for (int step = work.first_own; step < work.steps; ++step) {
            this->find_lane();
            run_output(step, D);
            this->store_reported(step);
        }
    }
    __device__ __forceinline__ void run() {
        if constexpr (!kConfig.outputs)
            if (pass().chunk_states == nullptr) return run_summary();
        if (work.first_own > 0) run_segment();
        this->load_state();
        this->signal_initial_state_read();
        if constexpr (kConfig.outputs)
            run_outputs();
        else
            store_chunk_states();
        this->store_state();
    }
};

}  // namespace gdn_cuda::ssd
