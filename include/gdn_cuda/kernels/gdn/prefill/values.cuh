// The value role of gdn/prefill: a warpgroup owns 64 rows of the state, keeps them in registers and updates them chunk by
// chunk. Products are transposed (value rows x tokens), so that the state, X and V' are left operands in registers.
#pragma once

#include <gdn_cuda/kernels/chunked/products.cuh>
#include <gdn_cuda/kernels/chunked/records.cuh>

namespace gdn_cuda::gdn {

template <PrefillConfig kConfig>
struct PrefillValues : PrefillProducts<kConfig> {
    using Base = PrefillProducts<kConfig>;
    using Base::add_inverse_rest, Base::add_scores_rest, Base::add_values_rest, Base::add_values_rest_to_state, Base::form_x,
        Base::load_values, Base::pack_update, Base::pack_values, Base::pack_values_rest, Base::read_factors, Base::scale_tokens,
        Base::start_update, Base::start_with_state, Base::start_with_tokens, Base::store_output, Base::store_output_tile,
        Base::store_output_without_tma;
    using Base::args, Base::shared, Base::work, Base::state;
    using Base::begin, Base::checkpoint, Base::end, Base::find_lane, Base::index, Base::is_pass, Base::products_may_overflow,
        Base::release, Base::follows_links, Base::round_state, Base::run_tokens, Base::signal_initial_state_read,
        Base::signal_state_written, Base::skip_links, Base::store_state, Base::warpgroup_sync;
    using Base::kTokenSteps;
    using Base::thread;
    // S q^T first shortens the dependency chain from one S to the next; one value warpgroup has 32 more registers for it.
    static constexpr bool kQueriesFirst = kConfig.value_groups == 1;

    using Plan = typename Base::Plan;
    using Stage = typename Plan::Stage;
    using Matrices = typename Plan::Matrices;
    using Factors = typename Plan::Factors;
    using TokenFactors = typename Base::TokenFactors;

    __device__ __forceinline__ PrefillValues(Plan& shared, const PrefillArgs& args) : Base(shared, args, shared.work) {}
    __device__ __forceinline__ PrefillValues(Plan& shared, const PrefillArgs& args, const PrefillWork& work)
        : Base(shared, args, work) {}

    // For a warpgroup whose rows are all past the end, or a pass for records alone: it only arrives at the barriers, and leaves
    // the SM to the others.
    __device__ __forceinline__ void skip_chunks(int first) {
        signal_initial_state_read();
        if (follows_links()) skip_links();
#pragma unroll 1
        for (int chunk = first; chunk < work.chunks; ++chunk) {
            const ChunkStage<kConfig.stages> current(chunk);
            barrier(shared.ready[current.stage]).wait(current.parity);
            start_record(chunk);
            finish_record();
            release(current.stage);
        }
        signal_state_written();
    }
    __device__ __forceinline__ void run(int first = 0) {
        const bool past_rows = kConfig.value_groups > 1 && work.first_row + index() * kValueRows >= work.rows;
        if (past_rows || is_pass(PrefillPass::records)) {
            skip_chunks(first);
            if (writes_records()) wait_for_bulk_stores();
            return;
        }
        begin();
#pragma unroll 1
        for (int chunk = first, checked = -1;;) {
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
        if (!kConfig.persistent && thread == 0) cute::tma_store_wait<0>();
        if (writes_records()) wait_for_bulk_stores();
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
            const bool warm_up = !kConfig.persistent && chunk < work.first_output;
            form_x(x, x, d, own);
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
                add_inverse_rest(d, x, cancels, matrices.inverse_rest);
                finish<true>(d, output, own, chunk, !without_tma && !warm_up);
            } else if (warm_up) [[unlikely]] {
                finish_without_output(d, own, chunk);
            } else {
                finish<false>(d, output, own, chunk, !without_tma);
            }
            if (without_tma && !warm_up) [[unlikely]]
                store_output_without_tma(chunk);
            if (!kConfig.persistent && all.steps.data != nullptr) [[unlikely]]
                store_state(checkpoint(chunk));
        }
        return chunk;
    }
    __device__ __forceinline__ void run_chunk_by_tokens(int chunk) {
        const bool stores = kConfig.persistent || chunk >= work.first_output;
        const bool without_tma = args.recurrence.cu_seqlens.data != nullptr && (chunk + 1) * kChunk > work.length;
        find_lane();
        if (thread == 0) cute::tma_store_wait<0>();
        warpgroup_sync();
        start_record(chunk);
        run_tokens(chunk);
        store_output_tile(chunk, stores && !without_tma);
        if (stores && without_tma) store_output_without_tma(chunk);
        if (!kConfig.persistent && args.recurrence.steps.data != nullptr) store_state(checkpoint(chunk));
        round_state();
        finish_record();
        release(ChunkStage<kConfig.stages>(chunk).stage);
    }

    // One thread writes records, in a pass that stores no outputs.
    __device__ __forceinline__ bool writes_records() const {
        return kConfig.linked && work.exports &&
               opaque(static_cast<int>(threadIdx.x)) == kConfig.first_value_group() * kWarpgroup;
    }
    __device__ __forceinline__ void start_record(int chunk) const {
        if (writes_records()) start_export<kConfig>(shared, chunk);
    }
    // Before the chunk is released.
    __device__ __forceinline__ void finish_record() const {
        if (writes_records()) cute::tma_store_wait<0>();
    }

    // From V' to the next state.
    __device__ __forceinline__ void finish_without_output(float (&d)[32], const TokenFactors& of_update, int chunk) {
        const ChunkStage<kConfig.stages> current(chunk);
        unsigned update[kTokenSteps][4];
        pack_update(update, d, of_update);
        start_update(update, shared.stages[current.stage].key);
        start_record(chunk);
        cute::warpgroup_wait<0>();
        warpgroup_fence_operand(state);
        round_state();
        finish_record();
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
        if constexpr (kTwoPart) start_record(chunk);
        if constexpr (kTwoPart) add_values_rest_to_state(d, of_update, stage);
        pack_update(update, d, of_update);
        pack_values(x, d);
        if constexpr (kQueriesFirst) {
            if constexpr (kTwoPart) {
                add_values_rest(output, d, x, matrices.scores);
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
            if constexpr (kTwoPart) finish_record();
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
            if constexpr (kTwoPart) finish_record();
            release(current.stage);
            store_output(d, chunk, by_tma);
        }
    }

  private:
    // Where registers do not hold both V' and the output: the output replaces V', and gets the products with V's residual.
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
};

}  // namespace gdn_cuda::gdn
