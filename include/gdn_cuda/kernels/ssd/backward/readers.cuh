// The readers role: tokens i, whose outputs read the state before the chunk and the tokens before.
//
//     K_ij = δ_j dY_i . X_j        N = Σ K ⊙ L        dC = N B + Σ exp(G) dY S        M' = C B^T ⊙ L, for the writers
#pragma once

#include <gdn_cuda/kernels/ssd/backward/work.cuh>

namespace gdn_cuda::ssd {

template <SsdBackwardConfig kConfig>
struct ReadersRole : TokensRole<kConfig> {
    using Base = TokensRole<kConfig>;
    using Base::shared, Base::args, Base::work, Base::warp, Base::lane, Base::g, Base::t, Base::token;
    using typename Base::Factors, typename Base::Operand, typename Base::Plan;
    static constexpr int kStages = Base::kStages;
    static constexpr DType kIo = Base::kIo;

    using Base::Base;

    // L of the pair of columns that begins at 8 n + 2 t, in row `half`: 0 above the diagonal.
    __device__ __forceinline__ float2 decays(const Factors& factors, int n, int half) const {
        const int row = token() + 8 * half, column = 8 * n + 2 * t;
        const float own = factors.gate[row];
        const float2 gate = pair_at(&factors.gate[column]);
        return {row >= column ? exp2_fast(own - gate.x) : 0.f, row > column ? exp2_fast(own - gate.y) : 0.f};
    }
    // N += K ⊙ L and M' to shared memory; K <- K ⊙ M'. Above the diagonal too, where all are 0: a branch costs ptxas registers,
    // and it serializes wgmmas.
    __device__ __forceinline__ void use_products(float (&K)[32], float (&N)[32], const float (&CB)[32], const Factors& factors,
                                                 SwizzledTile& scores) const {
        const unsigned to = tile_row(scores.bytes, 16 * warp + lane % 16);
#pragma unroll
        for (int n = 0; n < 8; n += 2) {
            unsigned pairs[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int at = 4 * n + 2 * i, columns = n + i / 2;
                const float2 decay = decays(factors, columns, i % 2), delta = pair_at(&factors.delta[8 * columns + 2 * t]);
                const float2 product = {decay.x == 0.f ? 0.f : K[at] * delta.x * decay.x,
                                        decay.y == 0.f ? 0.f : K[at + 1] * delta.y * decay.y};
                N[at] += product.x, N[at + 1] += product.y;
                pairs[i] = pack<kIo>(decay.x == 0.f ? 0.f : CB[at] * decay.x, decay.y == 0.f ? 0.f : CB[at + 1] * decay.y);
                K[at] = product.x * CB[at], K[at + 1] = product.y * CB[at + 1];
            }
            stmatrix_x4(row_vector(to, n + lane / 16), pairs[0], pairs[1], pairs[2], pairs[3]);
        }
    }
    // Sums over the warp's rows of the columns before its own block, columns 2 lane and 2 lane + 1 in each lane: in every step
    // a lane hands half of its columns to another.
    __device__ __forceinline__ float2 column_sums(const float (&Z)[32]) const {
        const auto column = [&](int n) {
            const bool counts = n / 2 < warp;
            return float2{counts ? Z[4 * n] + Z[4 * n + 2] : 0.f, counts ? Z[4 * n + 1] + Z[4 * n + 3] : 0.f};
        };
        const auto exchange = [&](float2 lower, float2 upper, int half) {
            const bool is_upper = (g & half) != 0;
            const float2 kept = is_upper ? upper : lower, sent = is_upper ? lower : upper;
            return float2{kept.x + __shfl_xor_sync(0xffffffffu, sent.x, 4 * half),
                          kept.y + __shfl_xor_sync(0xffffffffu, sent.y, 4 * half)};
        };
        const auto four = [&](int n) { return exchange(column(n), column(n + 4), 4); };
        const auto two = [&](int n) { return exchange(four(n), four(n + 2), 2); };
        return exchange(two(0), two(1), 1);
    }
    // For each token t, the sum of Z_ij over j < t <= i within the warp's rows.
    __device__ __forceinline__ void store_across(float (&to)[kChunk], const float (&Z)[32]) const {
        const float2 earlier = sums_before(column_sums(Z), lane);
        const bool counts = lane / 8 < warp;  // else no row of the warp is at or after the lane's columns, or some are not
        reinterpret_cast<float2*>(to)[lane] = {counts ? earlier.x : 0.f, counts ? earlier.y : 0.f};
        __syncwarp();
        float before[2] = {0.f, 0.f};  // of the row, over the columns of earlier n
#pragma unroll
        for (int n = 0; n < 6; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                before[half] += n / 2 >= warp ? 0.f : Z[4 * n + 2 * half] + Z[4 * n + 2 * half + 1];
#pragma unroll
        for (float& sum : before) {
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        }
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            if (n / 2 != warp) continue;
            float2 sum = {0.f, 0.f};
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float first = Z[4 * n + 2 * half], pair = first + Z[4 * n + 2 * half + 1];
                float upto = pair;
                const float one = __shfl_up_sync(0xffffffffu, upto, 1);
                if (t >= 1) upto += one;
                const float two = __shfl_up_sync(0xffffffffu, upto, 2);
                if (t >= 2) upto += two;
                const float preceding = __shfl_up_sync(0xffffffffu, upto, 1);
                const float own = before[half] + (t == 0 ? 0.f : preceding);
                before[half] += __shfl_sync(0xffffffffu, upto, lane | 3);
                const int row = token() + 8 * half, column = 8 * n + 2 * t;
                if (row >= column) sum.x += own;
                if (row >= column + 1) sum.y += own + first;
            }
#pragma unroll
            for (int step = 4; step < 32; step *= 2) {
                sum.x += __shfl_xor_sync(0xffffffffu, sum.x, step);
                sum.y += __shfl_xor_sync(0xffffffffu, sum.y, step);
            }
            if (g == 0) *reinterpret_cast<float2*>(&to[8 * n + 2 * t]) = sum;
        }
    }
    __device__ __forceinline__ void run() {
        float CB[32], N[32], dC[Base::kStateElements];
        clear_fragment(N);
        clear_fragment(dC);
        barrier(shared.group_full).wait(0);
        start_row_products<kIo, kConfig.states>(CB, shared.C, shared.B);
        wait_for_product(CB);
#pragma unroll 1
        for (int tile = 0; tile < work.tiles; ++tile) {
            this->find_lane();
            const PipelineStage<kStages> at(tile);
            auto& stage = shared.stages[at.index];
            const auto& factors = shared.factors[at.index];
            auto& sums = shared.sums[at.index];
            barrier(shared.stage_full[at.index]).wait(at.parity);
            barrier(shared.factors_full[at.index]).wait(at.parity);
            float K[32];
            start_tile_product<TileProduct::by_rows, kIo>(K, stage.dy, stage.x, false);
            wait_for_product(K);
            barrier(shared.sums_empty[at.index]).wait(at.parity ^ 1);  // so the writers have read the scores, too
            use_products(K, N, CB, factors, shared.scores[at.index]);
            cutlass::arch::fence_view_async_shared();
            barrier(shared.scores_full[at.index]).arrive();
            store_across(sums.across[warp], K);
            float read[32];
            start_row_products<kIo, kConfig.states>(read, shared.C, stage.states);
            Operand dy;
            this->load_rows(dy, stage.dy);
            wait_for_product(read);
            const float before[2] = {factors.before[token()], factors.before[token() + 8]};
            float c[2];
            Base::row_sums(c, dy, read);
            for (int half = 0; half < 2; ++half) c[half] = before[half] == 0.f ? 0.f : c[half] * before[half];
            this->store_row_sums(sums.read, c);
            Base::scale_rows(dy, dy, before);
            Base::start_into_states(dC, dy, stage.states);
            wait_for_product(dC);
            this->finish_tile(at.index);
        }
        // N, rounded, is a left operand here, and transposed in shared memory the writers'.
        Operand rounded;
        round_to_operand<kIo, 4>(rounded, N);
        SwizzledTile& to = shared.scores[0];
        NamedBarrier::sync(2 * kWarpgroup, 0);  // the writers have read the last scores
        this->store_operand(to, rounded);
        cutlass::arch::fence_view_async_shared();
        NamedBarrier::sync(2 * kWarpgroup, 0);
        Base::start_into_states(dC, rounded, shared.B);
        wait_for_product(dC);
        this->store_group_gradient(dC, args.dC);
    }
};

}  // namespace gdn_cuda::ssd
