// The role of gdn/prefill that owns the state: a warpgroup keeps 64 rows of it in registers and takes them from chunk to chunk.
// Everything is transposed (value rows x tokens), so that the state, X and V' are left operands straight from registers.
#pragma once

#include <gdn_cuda/kernels/gdn/prefill_reset.cuh>

namespace gdn_cuda::gdn {

template <PrefillConfig kConfig>
struct PrefillValues : PrefillReset<kConfig> {
    using Base = PrefillReset<kConfig>;
    using Base::args, Base::shared, Base::work, Base::state, Base::rounded_state;
    using Base::begin, Base::checkpoint, Base::end, Base::find_place, Base::warpgroup_sync, Base::index, Base::matrix_row,
        Base::products_would_spoil, Base::round_state, Base::store_state, Base::take_tokens, Base::tell_of_first,
        Base::tell_of_last;
    using Base::group, Base::thread, Base::warp, Base::lane, Base::t;
    using Base::kIo, Base::kStateSteps, Base::kTokenSteps;
    // The chain of products from one S to the next is shorter with S q^T before it, where there are 32 more registers.
    static constexpr bool kQueriesFirst = kConfig.value_groups == 1;

    using Plan = typename Base::Plan;
    using Stage = typename Plan::Stage;
    using Matrices = typename Plan::Matrices;
    using Factors = typename Plan::Factors;

    __device__ __forceinline__ PrefillValues(Plan& shared, const PrefillArgs& args) : Base(shared, args) {}

    // d = S x^T for the tokens of a chunk of keys or queries.
    __device__ __forceinline__ void start_with_state(float (&d)[32], const PrefillTile* tokens) {
        const auto right = tile_operand(tokens, 0);
        cute::warpgroup_arrive();
#pragma unroll
        for (int step = 0; step < kStateSteps; ++step)
            Product<kIo, 64, true>::run(d, rounded_state[step], right + along(step), step > 0);
        cute::warpgroup_commit_batch();
    }
    // d (+)= x m^T, x in registers, m one of the helpers' matrices.
    __device__ __forceinline__ void start_with_tokens(float (&d)[32], const unsigned (&x)[kTokenSteps][4],
                                                      const PrefillTile& matrix, bool add) {
        const auto right = tile_operand(&matrix, 0);
        cute::warpgroup_arrive();
#pragma unroll
        for (int step = 0; step < kTokenSteps; ++step)
            Product<kIo, 64, true>::run(d, x[step], right + along(step), add || step > 0);
        cute::warpgroup_commit_batch();
    }
    __device__ __forceinline__ void start_update(const unsigned (&x)[kTokenSteps][4], const PrefillTile* keys) {
        const auto right = tile_operand(keys, sizeof(PrefillTile));
        cute::warpgroup_arrive();
#pragma unroll
        for (int step = 0; step < kTokenSteps; ++step)
            Product<kIo, kConfig.head_k, false>::run(state, x[step], right + across(step), true);
        cute::warpgroup_commit_batch();
    }

    // This group's values of a chunk as a left operand, transposed on the way.
    __device__ __forceinline__ void load_values(unsigned (&x)[kTokenSteps][4], const PrefillTile& values) {
#pragma unroll
        for (int step = 0; step < kTokenSteps; ++step) ldmatrix_x4_trans(x[step], matrix_row(values) + step * kStepAcross);
    }

    // Calls visit(step, i, x, y) for each pair of numbers that makes register i of a left operand of tokens.
    template <class Visit>
    __device__ __forceinline__ void each_token_pair(float (&x)[32], Visit&& visit) {
#pragma unroll
        for (int step = 0; step < kTokenSteps; ++step)
#pragma unroll
            for (int i = 0; i < 4; ++i) visit(step, i, x[8 * step + 2 * i], x[8 * step + 2 * i + 1]);
    }
    // Factors of this thread's tokens, read while products are under way.
    using TokenFactors = float2[2 * kTokenSteps];
    __device__ __forceinline__ void read_factors(TokenFactors& own, const float (&factors)[kChunk]) const {
#pragma unroll
        for (int i = 0; i < 2 * kTokenSteps; ++i) own[i] = pair_at(&factors[8 * i + 2 * t]);
    }

    // By TMA, unless it would write over the next sequence.
    __device__ __forceinline__ void store_output(const float (&output)[32], int chunk, bool by_copies) {
        PrefillTile& tile = shared.output[index()];
        if (thread == 0) cute::tma_store_wait<0>();
        warpgroup_sync();
#pragma unroll
        for (int step = 0; step < kTokenSteps; ++step)
            stmatrix_x4_trans(matrix_row(tile) + step * kStepAcross, pack<kIo>(output[8 * step], output[8 * step + 1]),
                              pack<kIo>(output[8 * step + 2], output[8 * step + 3]),
                              pack<kIo>(output[8 * step + 4], output[8 * step + 5]),
                              pack<kIo>(output[8 * step + 6], output[8 * step + 7]));
        send_output(chunk, by_copies);
    }
    __device__ __forceinline__ void send_output(int chunk, bool by_copies) {
        PrefillTile& tile = shared.output[index()];
        cutlass::arch::fence_view_async_shared();
        warpgroup_sync();
        if (thread == 0 && by_copies) {
            const int token = static_cast<int>(work.start) + chunk * kChunk;
            const int batch = args.recurrence.cu_seqlens.data != nullptr ? 0 : work.sequence;
            tma_store(args.output, {work.first_row + index() * kValueRows, work.head, token, batch}, tile.bytes);
            cute::tma_store_arrive();
        }
    }
    __device__ __forceinline__ void store_output_by_hand(int chunk) {
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

    // A group whose rows are past the last has nothing to do, and leaves the multiprocessor to the others.
    __device__ __forceinline__ void let_pass() {
        tell_of_first();
#pragma unroll 1
        for (int chunk = 0; chunk < work.chunks; ++chunk) {
            const Turn<kConfig.stages> turn(chunk);
            barrier(shared.ready[turn.stage]).wait(turn.parity);
            release(turn.stage);
        }
        tell_of_last();
    }
    __device__ __forceinline__ void run() {
        if (kConfig.value_groups > 1 && work.first_row + index() * kValueRows >= work.rows) {
            let_pass();
            return;
        }
        begin();
#pragma unroll 1
        for (int chunk = 0, harmless = -1;;) {
            chunk = take_chunks(chunk, harmless);
            if (chunk >= work.chunks) break;
            if (products_would_spoil(chunk)) {
                take_by_token(chunk);
                ++chunk;
            } else {
                harmless = chunk;
            }
        }
        end();
        if (thread == 0) cute::tma_store_wait<0>();
    }

    // Chunks from `first` on, up to the last or to one that resets the state: products of matrices may not do for that, unless
    // it is known to be `harmless`.
    __device__ __forceinline__ int take_chunks(int first, int harmless) {
        const RecurrentArgs& all = args.recurrence;
        const int length = work.length;
        int chunk = first;
#pragma unroll 1
        for (; chunk < work.chunks; ++chunk) {
            const Turn<kConfig.stages> turn(chunk);
            const auto& stage = shared.stages[turn.stage];
            const auto& matrices = shared.matrices[chunk % (kConfig.stages - 1)];
            const auto& cancels = shared.cancels[chunk % (kConfig.stages - 1)];
            const auto& factors = shared.factors[turn.stage];
            find_place();
            barrier(shared.ready[turn.stage]).wait(turn.parity);

            unsigned x[kTokenSteps][4];
            float d[32], output[kQueriesFirst ? 32 : 1];
            TokenFactors own;
            start_with_state(d, stage.key);
            if constexpr (kQueriesFirst) start_with_state(output, stage.query);
            load_values(x, stage.value[index()]);
            const float decay = shared.decay[turn.stage];
            const bool resets = __shfl_sync(0xffffffffu, __float_as_uint(decay), 0) == __float_as_uint(kResets);
            if constexpr (!kQueriesFirst) read_factors(own, factors.of_key);
            cute::warpgroup_wait<kQueriesFirst>();
            warpgroup_fence_operand(d);
            if constexpr (kQueriesFirst) read_factors(own, factors.of_key);  // registers are short before
            const bool silent = chunk < work.silent;
            form_x(x, d, own);
            if (resets && chunk != harmless) [[unlikely]] {
                if constexpr (kQueriesFirst) {  // ptxas serialises all products of a loop that is left with some under way
                    cute::warpgroup_wait<0>();
                    warpgroup_fence_operand(output);
                }
                break;
            }
            start_with_tokens(d, x, matrices.inverse, false);
            const bool careful = __shfl_sync(0xffffffffu, reinterpret_cast<const unsigned&>(cancels), 0) != 0;
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
            const bool by_hand = all.cu_seqlens.data != nullptr && (chunk + 1) * kChunk > length;
            if (careful) [[unlikely]] {
                add_inverse_rest(d, x, cancels, matrices);
                finish<true>(d, output, own, chunk, !by_hand && !silent);
            } else if (silent) [[unlikely]] {
                finish_silently(d, own, chunk);
            } else {
                finish<false>(d, output, own, chunk, !by_hand);
            }
            if (by_hand && !silent) [[unlikely]]
                store_output_by_hand(chunk);
            if (all.steps.data != nullptr) [[unlikely]]
                store_state(checkpoint(chunk));
        }
        return chunk;
    }
    __device__ __forceinline__ void take_by_token(int chunk) {
        const bool stores = chunk >= work.silent;
        const bool by_hand = args.recurrence.cu_seqlens.data != nullptr && (chunk + 1) * kChunk > work.length;
        find_place();
        if (thread == 0) cute::tma_store_wait<0>();
        warpgroup_sync();
        take_tokens(chunk);
        send_output(chunk, stores && !by_hand);
        if (stores && by_hand) store_output_by_hand(chunk);
        if (args.recurrence.steps.data != nullptr) store_state(checkpoint(chunk));
        round_state();
        release(Turn<kConfig.stages>(chunk).stage);
    }

    // From V' to the next state.
    __device__ __forceinline__ void finish_silently(float (&d)[32], const TokenFactors& of_update, int chunk) {
        const Turn<kConfig.stages> turn(chunk);
        unsigned update[kTokenSteps][4];
        take_update(update, d, of_update);
        start_update(update, shared.stages[turn.stage].key);
        cute::warpgroup_wait<0>();
        warpgroup_fence_operand(state);
        round_state();
        release(turn.stage);
    }
    // From V' to the next state and this chunk's output.
    template <bool kCareful, int kOutput>
    __device__ __forceinline__ void finish(float (&d)[32], float (&output)[kOutput], TokenFactors& of_update, int hot_chunk,
                                           bool by_copies) {
        const int chunk =
            kCareful ? not_before_here(hot_chunk) : hot_chunk;  // the hot path keeps no addresses for the rare one
        const Turn<kConfig.stages> turn(chunk);
        const auto& stage = shared.stages[turn.stage];
        const auto& matrices = shared.matrices[chunk % (kConfig.stages - 1)];
        const auto& factors = shared.factors[turn.stage];
        unsigned x[kTokenSteps][4], update[kTokenSteps][4];
        if constexpr (kCareful) update_with_rest(d, of_update, stage);
        take_update(update, d, of_update);
        take_values(x, d);
        if constexpr (kQueriesFirst) {
            if constexpr (kCareful) {
                add_rest(output, d, x, matrices);
                add_scores_rest(output, x, stage, factors);
            }
            start_with_tokens(output, x, matrices.scores, true);
            start_update(update, stage.key);
            cute::warpgroup_wait<1>();
            warpgroup_fence_operand(output);
            store_output(output, chunk, by_copies);
            cute::warpgroup_wait<0>();
            warpgroup_fence_operand(state);
            round_state();
            release(turn.stage);
        } else {
            start_update(update, stage.key);
            if constexpr (kCareful) {
                cute::warpgroup_wait<0>();
                warpgroup_fence_operand(state);
                warpgroup_fence_operand(d);
                exchange_for_output(d, x, stage, matrices, factors);
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
            release(turn.stage);
            store_output(d, chunk, by_copies);
        }
    }
    __device__ __forceinline__ void add_inverse_rest(float (&d)[32], const unsigned (&x)[kTokenSteps][4],
                                                     const typename Plan::Cancelling& cancels, const Matrices& matrices) {
        const auto right = tile_operand(&matrices.inverse_rest, 0);
#pragma unroll
        for (int step = 0; step < kTokenSteps; ++step) {
            if (!__shfl_sync(0xffffffffu, cancels.column[step], 0)) continue;  // and its columns are from an earlier chunk
            cute::warpgroup_arrive();
            Product<kIo, 64, true>::run(d, x[step], right + along(step), true);
            cute::warpgroup_commit_batch();
            cute::warpgroup_wait<0>();
            warpgroup_fence_operand(d);
        }
    }
    // V' as a left operand, and V' exp(G_end - G) r.
    __device__ __forceinline__ void take_values(unsigned (&x)[kTokenSteps][4], float (&d)[32]) {
        each_token_pair(d, [&](int step, int i, float& v, float& v_next) { x[step][i] = pack<kIo>(v, v_next); });
    }
    __device__ __forceinline__ void take_update(unsigned (&update)[kTokenSteps][4], float (&d)[32],
                                                const TokenFactors& factors) {
        each_token_pair(d, [&](int step, int i, float& v, float& v_next) {
            const float2 of_update = factors[2 * step + i / 2];
            update[step][i] = pack<kIo>(v * of_update.x, v_next * of_update.y);
        });
    }
    // What rounding V' to 16 bits left of it: for the state, for the output, and for the output in place of V' where there is
    // no room for both.
    __device__ __forceinline__ void update_with_rest(float (&d)[32], const TokenFactors& factors, const Stage& stage) {
        const auto right = tile_operand(stage.key, sizeof(PrefillTile));
#pragma unroll
        for (int step = 0; step < kTokenSteps; ++step) {  // one after another: registers are short
            unsigned rest[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float2 scale = factors[2 * step + i / 2];
                const float x = d[8 * step + 2 * i] * scale.x, next = d[8 * step + 2 * i + 1] * scale.y;
                rest[i] = pack_rest<kIo>(x, next, pack<kIo>(x, next));
            }
            cute::warpgroup_arrive();
            Product<kIo, kConfig.head_k, false>::run(state, rest, right + across(step), true);
            cute::warpgroup_commit_batch();
            cute::warpgroup_wait<0>();
            warpgroup_fence_operand(state);
            warpgroup_fence_operand(d);  // or what is computed of it again would be kept, and spilled
        }
    }
    __device__ __forceinline__ void take_rest(unsigned (&rest)[kTokenSteps][4], float (&d)[32],
                                              const unsigned (&x)[kTokenSteps][4]) {
        each_token_pair(
            d, [&](int step, int i, float& v, float& v_next) { rest[step][i] = pack_rest<kIo>(v, v_next, x[step][i]); });
    }
    __device__ __forceinline__ void add_rest(float (&output)[32], float (&d)[32], const unsigned (&x)[kTokenSteps][4],
                                             const Matrices& matrices) {
        unsigned rest[kTokenSteps][4];
        take_rest(rest, d, x);
        start_with_tokens(output, rest, matrices.scores, true);
        cute::warpgroup_wait<0>();
        warpgroup_fence_operand(output);
    }
    __device__ __forceinline__ void exchange_for_output(float (&d)[32], const unsigned (&x)[kTokenSteps][4], const Stage& stage,
                                                        const Matrices& matrices, const Factors& factors) {
        unsigned rest[kTokenSteps][4];
        take_rest(rest, d, x);
        if (thread == 0) cute::tma_store_wait<0>();
        warpgroup_sync();
        auto* kept = reinterpret_cast<volatile unsigned*>(shared.output[index()].bytes) + thread;  // for want of registers
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
    // What rounding the scores left of them, times V': rarely needed, and computed anew.
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
    // X = v - exp(G) S k^T in place of v.
    __device__ __forceinline__ void form_x(unsigned (&x)[kTokenSteps][4], float (&d)[32], const TokenFactors& of_key) {
        each_token_pair(d, [&](int step, int i, float& s, float& s_next) {
            const float2 key = of_key[2 * step + i / 2], v = unpack<kIo>(x[step][i]);
            x[step][i] = pack<kIo>(v.x - key.x * s, v.y - key.y * s_next);
        });
    }
    __device__ __forceinline__ void scale_tokens(float (&d)[32], const TokenFactors& factors) {
        each_token_pair(d, [&](int step, int i, float& x, float& x_next) {
            x *= factors[2 * step + i / 2].x;
            x_next *= factors[2 * step + i / 2].y;
        });
    }
};

}  // namespace gdn_cuda::gdn
