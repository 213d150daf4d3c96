// The readers role: tokens i, whose outputs read the state before the chunk and the tokens before.
//
//     K_ij = δ_j dY_i . X_j        N = Σ K ⊙ L        dC = N B + Σ exp(G) dY S        M' = C B^T ⊙ L, for the writers
#pragma once

#include <gdn_cuda/kernels/common/stmatrix.cuh>
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
    // N += K ⊙ L and M' to shared memory; K <- K ⊙ M'.
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
            store_across(sums.across[warp], K, token(), 0, lane);
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
        const unsigned row = tile_row(to.bytes, 16 * warp + lane % 16);
#pragma unroll
        for (int step = 0; step < 4; ++step)
            stmatrix_x4(row_vector(row, 2 * step + lane / 16), rounded[step][0], rounded[step][1], rounded[step][2],
                        rounded[step][3]);
        cutlass::arch::fence_view_async_shared();
        NamedBarrier::sync(2 * kWarpgroup, 0);
        Base::start_into_states(dC, rounded, shared.B);
        wait_for_product(dC);
        this->store_group_gradient(dC, args.dC);
    }
};

}  // namespace gdn_cuda::ssd
