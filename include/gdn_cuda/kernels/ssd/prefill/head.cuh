// The role of a head: a warpgroup that owns its state, 64 channels, keeps it in registers and updates it chunk by chunk.
// Products are transposed (channels x tokens), so that the state and x are left operands in registers.
//
//     y = exp(G) S C^T + x^T M^T + D x      S <- exp(G_C) S + (δ exp(G_C - G) x)^T B
#pragma once

#include <gdn_cuda/kernels/chunked/products.cuh>
#include <gdn_cuda/kernels/common/silu.cuh>
#include <gdn_cuda/kernels/common/stmatrix.cuh>
#include <gdn_cuda/kernels/ssd/prefill/work.cuh>

namespace gdn_cuda::ssd {

using gdn::for_each_token_pair;
using gdn::kTokenSteps;
using gdn::TokenFragment;
using gdn::TokenOperand;

template <SsdConfig kConfig>
struct HeadRole : Lane {
    using Plan = SsdPlan<kConfig>;
    static constexpr DType kIo = kConfig.io;
    static constexpr int kStages = kConfig.stages(), kSlots = kConfig.slots();

    Plan& shared;
    const SsdArgs& args;
    const SsdWork& work;
    float state[kConfig.states / 2];

    __device__ __forceinline__ HeadRole(Plan& shared, const SsdArgs& args) : shared(shared), args(args), work(shared.work) {
        find_lane();
    }
    __device__ __forceinline__ int own_head() const { return group - 1; }
    __device__ __forceinline__ int head() const { return work.first_head + own_head(); }
    // The thread's first channel, and the state's extent (hopper/fragment.cuh).
    __device__ __forceinline__ int my_row() const { return 16 * warp + g; }
    __device__ __forceinline__ int rows() const { return kChannels; }
    __device__ __forceinline__ int columns() const { return kConfig.states; }
    __device__ __forceinline__ i64 state_offset() const {
        return (static_cast<i64>(work.sequence) * args.heads + head()) * kChannels * kConfig.states;
    }

    // S C^T, of S rounded, tile by tile: registers are short.
    __device__ __forceinline__ void multiply_state(TokenFragment& y, const SwizzledTile* C) const {
        constexpr int kSteps = kTileElements / 16;
#pragma unroll
        for (int tile = 0; tile < kConfig.state_tiles(); ++tile) {
            unsigned rounded[kSteps][4];
#pragma unroll
            for (int step = 0; step < kSteps; ++step)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int at = 8 * (tile * kSteps + step) + 2 * i;
                    rounded[step][i] = pack<kIo>(state[at], state[at + 1]);
                }
            gdn::start_product<kIo>(y, rounded, C + tile, tile > 0);
            wait_for_product(y);
        }
    }
    // Of a pair of tokens, in the order of a left operand. Read where they are used: registers are short.
    __device__ __forceinline__ float2 factor_at(const float (&factors)[kChunk], int step, int i) const {
        return pair_at(&factors[16 * step + i / 2 * 8 + 2 * t]);
    }
    // Times exp(G). A decay of 0 is a select: it stops infinities and NaN of the state.
    __device__ __forceinline__ void scale_tokens(TokenFragment& y, const float (&factors)[kChunk]) const {
        for_each_token_pair(y, [&](int step, int i, float& v, float& v_next) {
            const float2 factor = factor_at(factors, step, i);
            v = factor.x == 0.f ? 0.f : v * factor.x;
            v_next = factor.y == 0.f ? 0.f : v_next * factor.y;
        });
    }
    // x is loaded once more: registers are short.
    __device__ __forceinline__ void load_scaled(TokenOperand& scaled, const SwizzledTile& x,
                                                const float (&factors)[kChunk]) const {
        gdn::load_operand(scaled, x, *this);
#pragma unroll
        for (int step = 0; step < kTokenSteps; ++step)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float2 v = unpack<kIo>(scaled[step][i]), factor = factor_at(factors, step, i);
                scaled[step][i] = pack<kIo>(v.x * factor.x, v.y * factor.y);
            }
    }
    __device__ __forceinline__ void decay_state(float decay) {
        if (decay == 0.f) [[unlikely]]
            return clear_fragment(state);
        scale_fragment(state, decay);
    }
    __device__ __forceinline__ float D_of(int row) const {
        return load_float(args.D.values, head() * args.D.head + row * args.D.channel);
    }
    // + D x, and times silu(z).
    __device__ __forceinline__ void finish(TokenFragment& y, const TokenOperand& x, const float (&D)[2],
                                           const SwizzledTile* gates) const {
        [[maybe_unused]] TokenOperand z;
        if constexpr (kConfig.gated) gdn::load_operand(z, gates[own_head()], *this);
        for_each_token_pair(y, [&](int step, int i, float& v, float& v_next) {
            const float2 own = unpack<kIo>(x[step][i]);
            v = fmaf(D[i % 2], own.x, v), v_next = fmaf(D[i % 2], own.y, v_next);
            if constexpr (kConfig.gated) {
                const float2 gate = unpack<kIo>(z[step][i]);
                v *= silu(gate.x), v_next *= silu(gate.y);
            }
        });
    }
    __device__ __forceinline__ void write_tile(SwizzledTile& tile, const TokenFragment& y) const {
#pragma unroll
        for (int step = 0; step < kTokenSteps; ++step)
            stmatrix_x4_trans(matrix_row(tile) + step * kMnMajorStep, pack<kIo>(y[8 * step], y[8 * step + 1]),
                              pack<kIo>(y[8 * step + 2], y[8 * step + 3]), pack<kIo>(y[8 * step + 4], y[8 * step + 5]),
                              pack<kIo>(y[8 * step + 6], y[8 * step + 7]));
    }
    __device__ __forceinline__ void store_without_tma(const SwizzledTile& tile, int chunk) const {
        using Io = Storage<kIo>;
        Io* to = static_cast<Io*>(args.out_data) + (work.start + chunk * kChunk) * args.out_token + head() * args.out_head;
#pragma unroll 1
        for (int i = thread; i < tokens_in(work, chunk) * 8; i += kWarpgroup)
            *reinterpret_cast<uint4*>(to + i / 8 * args.out_token + i % 8 * 8) =
                load_shared(row_vector(tile_row(tile.bytes, i / 8), i % 8));
    }
    __device__ __forceinline__ void release_stage(int chunk) const {
        if (lane == 0) barrier(shared.stage_empty[PipelineStage<kStages>(chunk).index]).arrive();
    }

    __device__ __forceinline__ void run() {
        clear_fragment(state);
        if (args.initial != nullptr) load_fragment(state, *this, args.initial + state_offset());
        const bool has_D = args.D.values.data != nullptr;
        const float D[2] = {has_D ? D_of(my_row()) : 0.f, has_D ? D_of(my_row() + 8) : 0.f};
#pragma unroll 1
        for (int chunk = 0; chunk < work.chunks; ++chunk) {
            find_lane();
            const PipelineStage<kStages> current(chunk);
            const PipelineStage<kSlots> slot(chunk);
            auto& stage = stage_at(shared, current.index);
            SwizzledTile& tile = stage.x[own_head()];
            const auto& factors = shared.factors[slot.index][own_head()];
            barrier(shared.stage_full[current.index]).wait(current.parity);
            TokenFragment y;
            TokenOperand x, update;
            if (warp == 0 && chunk > 0) {  // its outputs are stored
                if (thread == 0) cute::tma_store_wait<0>();
                __syncwarp();
                release_stage(chunk - 1);
            }
            multiply_state(y, stage.C);
            barrier(shared.scores_full[slot.index]).wait(slot.parity);
            gdn::load_operand(x, tile, *this);
            scale_tokens(y, factors.before);
            gdn::start_product<kIo>(y, x, &shared.scores[slot.index][own_head()], true);
            decay_state(shared.decay[slot.index][own_head()]);
            wait_for_product(y);
            finish(y, x, D, stage.z);
            load_scaled(update, tile, factors.after);
            gdn::start_product_mn<kIo>(state, update, stage.B);
            warpgroup_sync();  // all have loaded x
            write_tile(tile, y);
            cutlass::arch::fence_view_async_shared();
            warpgroup_sync();
            if (has_tail(args, work, chunk)) [[unlikely]] {
                store_without_tma(tile, chunk);
            } else if (thread == 0) {
                tma_store(args.out, tile_of(work, chunk, head()), tile.bytes);
                cute::tma_store_arrive();
            }
            wait_for_product(state);
            __syncwarp();
            if (lane == 0) barrier(shared.scores_empty[slot.index]).arrive();
            if (warp > 0) release_stage(chunk);
        }
        if (args.last != nullptr) store_fragment(state, *this, args.last + state_offset());
        if (thread == 0) cute::tma_store_wait<0>();
    }
};

}  // namespace gdn_cuda::ssd
