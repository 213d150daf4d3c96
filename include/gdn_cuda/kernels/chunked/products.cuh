// What a warpgroup that holds 64 rows of the state does with a chunk in gdn/prefill: products of the state, X or V', in
// registers, with keys, queries, T or P, in shared memory, and the output's store. Products are transposed (value rows x
// tokens).
#pragma once

#include <gdn_cuda/kernels/gdn/prefill/by_token.cuh>

namespace gdn_cuda::gdn {

template <PrefillConfig kConfig, class PlanType = PrefillSharedPlan<kConfig>>
struct PrefillProducts : PrefillReset<kConfig, PlanType> {
    using Base = PrefillReset<kConfig, PlanType>;
    using Base::args, Base::shared, Base::work, Base::state, Base::rounded_state;
    using Base::index, Base::matrix_row, Base::warpgroup_sync;
    using Base::kIo, Base::kStateSteps, Base::kTokenSteps;
    using Base::thread, Base::lane, Base::t;

    using Plan = typename Base::Plan;
    using Stage = typename Plan::Stage;
    using Factors = typename Plan::Factors;

    __device__ __forceinline__ PrefillProducts(Plan& shared, const PrefillArgs& args, const PrefillWork& work)
        : Base(shared, args, work) {}

    // d = S x^T for the chunk's keys or queries x.
    __device__ __forceinline__ void start_with_state(float (&d)[32], const PrefillTile* tokens) {
        const auto right = tile_operand(tokens, 0);
        cute::warpgroup_arrive();
#pragma unroll
        for (int step = 0; step < kStateSteps; ++step)
            Product<kIo, 64, true>::run(d, rounded_state[step], right + k_major_step(step), step > 0);
        cute::warpgroup_commit_batch();
    }
    // d (+)= x m^T: x in registers, m a matrix of a helper role.
    __device__ __forceinline__ void start_with_tokens(float (&d)[32], const unsigned (&x)[kTokenSteps][4],
                                                      const PrefillTile& matrix, bool add) {
        const auto right = tile_operand(&matrix, 0);
        cute::warpgroup_arrive();
#pragma unroll
        for (int step = 0; step < kTokenSteps; ++step)
            Product<kIo, 64, true>::run(d, x[step], right + k_major_step(step), add || step > 0);
        cute::warpgroup_commit_batch();
    }
    __device__ __forceinline__ void start_update(const unsigned (&x)[kTokenSteps][4], const PrefillTile* keys) {
        const auto right = tile_operand(keys, sizeof(PrefillTile));
        cute::warpgroup_arrive();
#pragma unroll
        for (int step = 0; step < kTokenSteps; ++step)
            Product<kIo, kConfig.head_k, false>::run(state, x[step], right + mn_major_step(step), true);
        cute::warpgroup_commit_batch();
    }

    // This warpgroup's values of a chunk as a left operand, transposed by ldmatrix.
    __device__ __forceinline__ void load_values(unsigned (&x)[kTokenSteps][4], const PrefillTile& values) {
#pragma unroll
        for (int step = 0; step < kTokenSteps; ++step) ldmatrix_x4_trans(x[step], matrix_row(values) + step * kMnMajorStep);
    }

    // Where a lane may keep 16 bytes a step in place of the values that its warp has loaded.
    __device__ __forceinline__ unsigned values_piece(const PrefillTile& values, int step) const {
        return row_piece(tile_row(values.bytes, 16 * step + lane / 2), 2 * Base::warp + lane % 2);
    }

    // Calls visit(step, i, x, y) for each pair of elements in register i of the left operand over tokens.
    template <class Visit>
    __device__ __forceinline__ void for_each_token_pair(float (&x)[32], Visit&& visit) {
#pragma unroll
        for (int step = 0; step < kTokenSteps; ++step)
#pragma unroll
            for (int i = 0; i < 4; ++i) visit(step, i, x[8 * step + 2 * i], x[8 * step + 2 * i + 1]);
    }
    // Factors of this thread's tokens, read while wgmmas are in flight.
    using TokenFactors = float2[2 * kTokenSteps];
    __device__ __forceinline__ void read_factors(TokenFactors& own, const float (&factors)[kChunk]) const {
#pragma unroll
        for (int i = 0; i < 2 * kTokenSteps; ++i) own[i] = pair_at(&factors[8 * i + 2 * t]);
    }

    __device__ __forceinline__ void write_output_tile(const float (&output)[32]) {
        PrefillTile& tile = shared.output[index()];
#pragma unroll
        for (int step = 0; step < kTokenSteps; ++step)
            stmatrix_x4_trans(matrix_row(tile) + step * kMnMajorStep, pack<kIo>(output[8 * step], output[8 * step + 1]),
                              pack<kIo>(output[8 * step + 2], output[8 * step + 3]),
                              pack<kIo>(output[8 * step + 4], output[8 * step + 5]),
                              pack<kIo>(output[8 * step + 6], output[8 * step + 7]));
    }
    // By TMA, unless the tile would overwrite the next sequence's outputs.
    __device__ __forceinline__ void store_output(const float (&output)[32], int chunk, bool by_tma) {
        if (thread == 0) cute::tma_store_wait<0>();
        warpgroup_sync();
        write_output_tile(output);
        store_output_tile(chunk, by_tma);
    }
    __device__ __forceinline__ void store_output_tile(int chunk, bool by_tma) {
        PrefillTile& tile = shared.output[index()];
        cutlass::arch::fence_view_async_shared();
        warpgroup_sync();
        if (thread == 0 && by_tma) start_tile_store(args, work, chunk, index(), tile);
    }
    __device__ __forceinline__ void store_output_without_tma(int chunk) {
        const RecurrentArgs& all = args.recurrence;
        const int first_row = work.first_row + index() * kValueRows;
        using Io = Storage<kIo>;
        Io* to = static_cast<Io*>(all.output.data) + (work.start + chunk * kChunk) * all.output.token +
                 work.head * all.output.head + first_row;
#pragma unroll 1
        for (int i = thread; i < tokens_in(work, chunk) * 8; i += kWarpgroup)
            if (first_row + i % 8 * 8 < all.outputs)
                *reinterpret_cast<uint4*>(to + i / 8 * all.output.token + i % 8 * 8) =
                    load_shared(row_piece(tile_row(shared.output[index()].bytes, i / 8), i % 8));
    }

    __device__ __forceinline__ void add_inverse_rest(float (&d)[32], const unsigned (&x)[kTokenSteps][4],
                                                     const typename Plan::CancelFlags& cancels,
                                                     const PrefillTile& inverse_rest) {
        const auto right = tile_operand(&inverse_rest, 0);
#pragma unroll
        for (int step = 0; step < kTokenSteps; ++step) {
            if (!__shfl_sync(0xffffffffu, cancels.column[step], 0)) continue;  // inverse_rest has an earlier chunk's
            cute::warpgroup_arrive();
            Product<kIo, 64, true>::run(d, x[step], right + k_major_step(step), true);
            cute::warpgroup_commit_batch();
            cute::warpgroup_wait<0>();
            warpgroup_fence_operand(d);
        }
    }
    // V' as a left operand; below, V' exp(G_end - G) r as one.
    __device__ __forceinline__ void pack_values(unsigned (&x)[kTokenSteps][4], float (&d)[32]) {
        for_each_token_pair(d, [&](int step, int i, float& v, float& v_next) { x[step][i] = pack<kIo>(v, v_next); });
    }
    __device__ __forceinline__ void pack_update(unsigned (&update)[kTokenSteps][4], float (&d)[32],
                                                const TokenFactors& factors) {
        for_each_token_pair(d, [&](int step, int i, float& v, float& v_next) {
            const float2 of_update = factors[2 * step + i / 2];
            update[step][i] = pack<kIo>(v * of_update.x, v_next * of_update.y);
        });
    }
    // Products with the rounding residual of V', added to the state; below, to the output.
    __device__ __forceinline__ void add_values_rest_to_state(float (&d)[32], const TokenFactors& factors, const Stage& stage) {
        const auto right = tile_operand(stage.key, sizeof(PrefillTile));
#pragma unroll
        for (int step = 0; step < kTokenSteps; ++step) {  // one step at a time: registers are short
            unsigned rest[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float2 scale = factors[2 * step + i / 2];
                const float x = d[8 * step + 2 * i] * scale.x, next = d[8 * step + 2 * i + 1] * scale.y;
                rest[i] = pack_rest<kIo>(x, next, pack<kIo>(x, next));
            }
            cute::warpgroup_arrive();
            Product<kIo, kConfig.head_k, false>::run(state, rest, right + mn_major_step(step), true);
            cute::warpgroup_commit_batch();
            cute::warpgroup_wait<0>();
            warpgroup_fence_operand(state);
            warpgroup_fence_operand(d);  // otherwise values recomputed from d would be kept, and spilled
        }
    }
    __device__ __forceinline__ void pack_values_rest(unsigned (&rest)[kTokenSteps][4], float (&d)[32],
                                                     const unsigned (&x)[kTokenSteps][4]) {
        for_each_token_pair(
            d, [&](int step, int i, float& v, float& v_next) { rest[step][i] = pack_rest<kIo>(v, v_next, x[step][i]); });
    }
    __device__ __forceinline__ void add_values_rest(float (&output)[32], float (&d)[32], const unsigned (&x)[kTokenSteps][4],
                                                    const PrefillTile& scores) {
        unsigned rest[kTokenSteps][4];
        pack_values_rest(rest, d, x);
        start_with_tokens(output, rest, scores, true);
        cute::warpgroup_wait<0>();
        warpgroup_fence_operand(output);
    }
    // Adds the rounding residual of the scores, times V'; rarely needed, so recomputed.
    __device__ __forceinline__ void add_scores_rest(float (&output)[32], const unsigned (&x)[kTokenSteps][4],
                                                    const Stage& stage, const Factors& factors) {
        float products[32];
        start_token_products<kConfig>(products, stage.query, stage.key);
        if (thread == 0) cute::tma_store_wait<0>();
        warpgroup_sync();
        cute::warpgroup_wait<0>();
        warpgroup_fence_operand(products);
        decay(products, *this, factors.query_row, factors.column);
        PrefillTile& tile = shared.output[index()];
        store_scores<kIo, true>(products, *this, tile, args.recurrence.scale);
        cutlass::arch::fence_view_async_shared();
        warpgroup_sync();
        start_with_tokens(output, x, tile, true);
        cute::warpgroup_wait<0>();
        warpgroup_fence_operand(output);
    }
    // X = v - exp(G) S k^T.
    __device__ __forceinline__ void form_x(unsigned (&x)[kTokenSteps][4], const unsigned (&values)[kTokenSteps][4],
                                           float (&d)[32], const TokenFactors& of_key) {
        for_each_token_pair(d, [&](int step, int i, float& s, float& s_next) {
            const float2 key = of_key[2 * step + i / 2], v = unpack<kIo>(values[step][i]);
            x[step][i] = pack<kIo>(v.x - key.x * s, v.y - key.y * s_next);
        });
    }
    __device__ __forceinline__ void scale_tokens(float (&d)[32], const TokenFactors& factors) {
        for_each_token_pair(d, [&](int step, int i, float& x, float& x_next) {
            x *= factors[2 * step + i / 2].x;
            x_next *= factors[2 * step + i / 2].y;
        });
    }
};

}  // namespace gdn_cuda::gdn
