// The value role of gdn/prefill: a warpgroup owns 64 rows of the state, keeps them in registers and updates them chunk by
// chunk. Products are transposed (value rows x tokens), so that the state, X and V' are left operands in registers.
#pragma once

#include <gdn_cuda/kernels/gdn/prefill_reset.cuh>

namespace gdn_cuda::gdn {

template <PrefillConfig kConfig>
struct PrefillValues : PrefillReset<kConfig> {
    using Base = PrefillReset<kConfig>;
    using Base::args, Base::shared, Base::work, Base::state, Base::rounded_state;
    using Base::begin, Base::checkpoint, Base::end, Base::find_lane, Base::warpgroup_sync, Base::index, Base::matrix_row,
        Base::products_may_overflow, Base::round_state, Base::store_state, Base::run_tokens, Base::signal_initial_state_read,
        Base::signal_state_written;
    using Base::group, Base::thread, Base::warp, Base::lane, Base::t;
    using Base::kIo, Base::kStateSteps, Base::kTokenSteps;
    // S q^T first shortens the dependency chain from one S to the next; one value warpgroup has 32 more registers for it.
    static constexpr bool kQueriesFirst = kConfig.value_groups == 1;

    using Plan = typename Base::Plan;
    using Stage = typename Plan::Stage;
    using Matrices = typename Plan::Matrices;
    using Factors = typename Plan::Factors;

    __device__ __forceinline__ PrefillValues(Plan& shared, const PrefillArgs& args) : Base(shared, args) {}

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

    // By TMA, unless the tile would overwrite the next sequence's outputs.
    __device__ __forceinline__ void store_output(const float (&output)[32], int chunk, bool by_tma) {
        PrefillTile& tile = shared.output[index()];
        if (thread == 0) cute::tma_store_wait<0>();
        warpgroup_sync();
#pragma unroll
        for (int step = 0; step < kTokenSteps; ++step)
            stmatrix_x4_trans(matrix_row(tile) + step * kMnMajorStep, pack<kIo>(output[8 * step], output[8 * step + 1]),
                              pack<kIo>(output[8 * step + 2], output[8 * step + 3]),
                              pack<kIo>(output[8 * step + 4], output[8 * step + 5]),
                              pack<kIo>(output[8 * step + 6], output[8 * step + 7]));
        store_output_tile(chunk, by_tma);
    }
    __device__ __forceinline__ void store_output_tile(int chunk, bool by_tma) {
        PrefillTile& tile = shared.output[index()];
        cutlass::arch::fence_view_async_shared();
        warpgroup_sync();
        if (thread == 0 && by_tma) {
            const int token = static_cast<int>(work.start) + chunk * kChunk;
            const int batch = args.recurrence.cu_seqlens.data != nullptr ? 0 : work.sequence;
            tma_store(args.output, {work.first_row + index() * kValueRows, work.head, token, batch}, tile.bytes);
            cute::tma_store_arrive();
        }
    }
    __device__ __forceinline__ void store_output_without_tma(int chunk) {
        const RecurrentArgs& all = args.recurrence;
        const int first_row = work.first_row + index() * kValueRows;
        using Io = Storage<kIo>;
        Io* to = static_cast<Io*>(all.output.data) + (work.start + chunk * kChunk) * all.output.token +
                 work.head * all.output.head + first_row;
#pragma unroll 1
        for (int i = thread; i < tokens_in(work, chunk) * 8; i += kWarpgroup)
            if (first_row + i % 8 * 8 < all.dv)
                *reinterpret_cast<uint4*>(to + i / 8 * all.output.token + i % 8 * 8) =
                    load_shared(row_piece(tile_row(shared.output[index()].bytes, i / 8), i % 8));
    }

    // For a warpgroup whose rows are all past the end: it only arrives at the barriers, and leaves the SM to the others.
    __device__ __forceinline__ void skip_chunks() {
        signal_initial_state_read();
#pragma unroll 1
        for (int chunk = 0; chunk < work.chunks; ++chunk) {
            const ChunkStage<kConfig.stages> current(chunk);
            barrier(shared.ready[current.stage]).wait(current.parity);
            release(current.stage);
        }
        signal_state_written();
    }
    __device__ __forceinline__ void run() {
        if (kConfig.value_groups > 1 && work.first_row + index() * kValueRows >= work.rows) {
            skip_chunks();
            return;
        }
        begin();
#pragma unroll 1
        for (int chunk = 0, checked = -1;;) {
            chunk = run_chunks(chunk, checked);
            if (chunk >= work.chunks) break;
            if (products_may_overflow(chunk)) {
                run_chunk_by_tokens(chunk);
                ++chunk;
            } else {
                checked = chunk;
            }
        }
        end();
        if (thread == 0) cute::tma_store_wait<0>();
    }

    // Runs chunks from `first` on; stops before one that resets the state, as matrix products may spread NaN then, unless it is
    // `checked` already. Returns where it stopped.
    __device__ __forceinline__ int run_chunks(int first, int checked) {
        const RecurrentArgs& all = args.recurrence;
        const int length = work.length;
        int chunk = first;
#pragma unroll 1
        for (; chunk < work.chunks; ++chunk) {
            const ChunkStage<kConfig.stages> current(chunk);
            const auto& stage = shared.stages[current.stage];
            const auto& matrices = shared.matrices[chunk % (kConfig.stages - 1)];
            const auto& cancels = shared.cancels[chunk % (kConfig.stages - 1)];
            const auto& factors = shared.factors[current.stage];
            find_lane();
            barrier(shared.ready[current.stage]).wait(current.parity);

            unsigned x[kTokenSteps][4];
            float d[32], output[kQueriesFirst ? 32 : 1];
            TokenFactors own;
            start_with_state(d, stage.key);
            if constexpr (kQueriesFirst) start_with_state(output, stage.query);
            load_values(x, stage.value[index()]);
            const float decay = shared.decay[current.stage];
            const bool resets = __shfl_sync(0xffffffffu, __float_as_uint(decay), 0) == __float_as_uint(kResets);
            if constexpr (!kQueriesFirst) read_factors(own, factors.of_key);
            cute::warpgroup_wait<kQueriesFirst>();
            warpgroup_fence_operand(d);
            if constexpr (kQueriesFirst) read_factors(own, factors.of_key);  // registers are short before
            const bool warm_up = chunk < work.first_output;
            form_x(x, d, own);
            if (resets && chunk != checked) [[unlikely]] {
                if constexpr (kQueriesFirst) {  // ptxas serialises all wgmmas of a loop that exits with some in flight
                    cute::warpgroup_wait<0>();
                    warpgroup_fence_operand(output);
                }
                break;
            }
            start_with_tokens(d, x, matrices.inverse, false);
            const bool two_part = __shfl_sync(0xffffffffu, reinterpret_cast<const unsigned&>(cancels), 0) != 0;
            if constexpr (kQueriesFirst) {
                read_factors(own, factors.of_query);
                cute::warpgroup_wait<1>();
                warpgroup_fence_operand(output);
                scale_tokens(output, own);
            }
#pragma unroll
            for (float& s : state) s *= decay;
            read_factors(own, factors.of_update);
            cute::warpgroup_wait<0>();
            warpgroup_fence_operand(d);
            const bool without_tma = all.cu_seqlens.data != nullptr && (chunk + 1) * kChunk > length;
            if (two_part) [[unlikely]] {
                add_inverse_rest(d, x, cancels, matrices);
                finish<true>(d, output, own, chunk, !without_tma && !warm_up);
            } else if (warm_up) [[unlikely]] {
                finish_without_output(d, own, chunk);
            } else {
                finish<false>(d, output, own, chunk, !without_tma);
            }
            if (without_tma && !warm_up) [[unlikely]]
                store_output_without_tma(chunk);
            if (all.steps.data != nullptr) [[unlikely]]
                store_state(checkpoint(chunk));
        }
        return chunk;
    }
    __device__ __forceinline__ void run_chunk_by_tokens(int chunk) {
        const bool stores = chunk >= work.first_output;
        const bool without_tma = args.recurrence.cu_seqlens.data != nullptr && (chunk + 1) * kChunk > work.length;
        find_lane();
        if (thread == 0) cute::tma_store_wait<0>();
        warpgroup_sync();
        run_tokens(chunk);
        store_output_tile(chunk, stores && !without_tma);
        if (stores && without_tma) store_output_without_tma(chunk);
        if (args.recurrence.steps.data != nullptr) store_state(checkpoint(chunk));
        round_state();
        release(ChunkStage<kConfig.stages>(chunk).stage);
    }

    // From V' to the next state.
    __device__ __forceinline__ void finish_without_output(float (&d)[32], const TokenFactors& of_update, int chunk) {
        const ChunkStage<kConfig.stages> current(chunk);
        unsigned update[kTokenSteps][4];
        pack_update(update, d, of_update);
        start_update(update, shared.stages[current.stage].key);
        cute::warpgroup_wait<0>();
        warpgroup_fence_operand(state);
        round_state();
        release(current.stage);
    }
    // From V' to the next state and the chunk's output.
    template <bool kTwoPart, int kOutput>
    __device__ __forceinline__ void finish(float (&d)[32], float (&output)[kOutput], TokenFactors& of_update, int hot_chunk,
                                           bool by_tma) {
        const int chunk = kTwoPart ? opaque(hot_chunk) : hot_chunk;  // so the hot path keeps no addresses for the rare one
        const ChunkStage<kConfig.stages> current(chunk);
        const auto& stage = shared.stages[current.stage];
        const auto& matrices = shared.matrices[chunk % (kConfig.stages - 1)];
        const auto& factors = shared.factors[current.stage];
        unsigned x[kTokenSteps][4], update[kTokenSteps][4];
        if constexpr (kTwoPart) add_values_rest_to_state(d, of_update, stage);
        pack_update(update, d, of_update);
        pack_values(x, d);
        if constexpr (kQueriesFirst) {
            if constexpr (kTwoPart) {
                add_values_rest(output, d, x, matrices);
                add_scores_rest(output, x, stage, factors);
            }
            start_with_tokens(output, x, matrices.scores, true);
            start_update(update, stage.key);
            cute::warpgroup_wait<1>();
            warpgroup_fence_operand(output);
            store_output(output, chunk, by_tma);
            cute::warpgroup_wait<0>();
            warpgroup_fence_operand(state);
            round_state();
            release(current.stage);
        } else {
            start_update(update, stage.key);
            if constexpr (kTwoPart) {
                cute::warpgroup_wait<0>();
                warpgroup_fence_operand(state);
                warpgroup_fence_operand(d);
                replace_by_output(d, x, stage, matrices, factors);
                add_scores_rest(d, x, stage, factors);
            } else {
                start_with_state(d, stage.query);
                TokenFactors own;
                read_factors(own, factors.of_query);
                cute::warpgroup_wait<0>();
                warpgroup_fence_operand(state);
                warpgroup_fence_operand(d);
                scale_tokens(d, own);
            }
            round_state();
            start_with_tokens(d, x, matrices.scores, true);
            cute::warpgroup_wait<0>();
            warpgroup_fence_operand(d);
            release(current.stage);
            store_output(d, chunk, by_tma);
        }
    }
    __device__ __forceinline__ void add_inverse_rest(float (&d)[32], const unsigned (&x)[kTokenSteps][4],
                                                     const typename Plan::CancelFlags& cancels, const Matrices& matrices) {
        const auto right = tile_operand(&matrices.inverse_rest, 0);
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
    // Products with the rounding residual of V': added to the state, added to the output (add_values_rest), or to an output
    // that replaces V' where registers do not hold both (replace_by_output).
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
                                                    const Matrices& matrices) {
        unsigned rest[kTokenSteps][4];
        pack_values_rest(rest, d, x);
        start_with_tokens(output, rest, matrices.scores, true);
        cute::warpgroup_wait<0>();
        warpgroup_fence_operand(output);
    }
    __device__ __forceinline__ void replace_by_output(float (&d)[32], const unsigned (&x)[kTokenSteps][4], const Stage& stage,
                                                      const Matrices& matrices, const Factors& factors) {
        unsigned rest[kTokenSteps][4];
        pack_values_rest(rest, d, x);
        if (thread == 0) cute::tma_store_wait<0>();
        warpgroup_sync();
        auto* kept = reinterpret_cast<volatile unsigned*>(shared.output[index()].bytes) + thread;  // registers are short
#pragma unroll
        for (int i = 0; i < 4 * kTokenSteps; ++i) kept[i * kWarpgroup] = rest[i / 4][i % 4];
        start_with_state(d, stage.query);
        cute::warpgroup_wait<0>();
        warpgroup_fence_operand(d);
        TokenFactors own;
        read_factors(own, factors.of_query);
        scale_tokens(d, own);
#pragma unroll
        for (int i = 0; i < 4 * kTokenSteps; ++i) rest[i / 4][i % 4] = kept[i * kWarpgroup];
        start_with_tokens(d, rest, matrices.scores, true);
        cute::warpgroup_wait<0>();
        warpgroup_fence_operand(d);
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
    __device__ __forceinline__ void release(int stage) {
        __syncwarp();
        if (lane == 0) barrier(shared.done[stage]).arrive();
    }
    // X = v - exp(G) S k^T, in place of v.
    __device__ __forceinline__ void form_x(unsigned (&x)[kTokenSteps][4], float (&d)[32], const TokenFactors& of_key) {
        for_each_token_pair(d, [&](int step, int i, float& s, float& s_next) {
            const float2 key = of_key[2 * step + i / 2], v = unpack<kIo>(x[step][i]);
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
