// The value role of gdn/prefill: a warpgroup owns 64 rows of the state, keeps them in registers and updates them chunk by
// chunk. Products are transposed (value rows x tokens), so that the state, X and V' are left operands in registers.
//
//     d = S k^T    X = v - exp(G) d    V' = X T^T    S <- exp(G_C) S + (exp(G_C - G) V')^T k    o = scale exp(G) S q^T + V' P^T
#pragma once

#include <gdn_cuda/kernels/chunked/two_part.cuh>
#include <gdn_cuda/kernels/chunked/value_role.cuh>
#include <gdn_cuda/kernels/gdn/prefill/by_token.cuh>
#include <gdn_cuda/kernels/gdn/prefill/wide.cuh>

namespace gdn_cuda::gdn {

// A block with one value warpgroup has registers for V' and the output. Then S q^T comes before S changes, which shortens the
// dependency chain from one S to the next; and first of all, where a rounded copy of S is kept.
template <class Owner>
constexpr bool kKeepsOutput = Owner::kConfig.value_groups == 1;
template <class Owner>
constexpr bool kQueriesFirst = kKeepsOutput<Owner> && !Owner::kConfig.is_wide();

// From V' to the next state.
template <class Owner>
__device__ __forceinline__ void finish_without_output(Owner& own, TokenFragment& d, const TokenFactors& update_scale,
                                                      int chunk) {
    const PipelineStage<Owner::kConfig.stages> current(chunk);
    TokenOperand update;
    pack_scaled_tokens<Owner::kIo>(update, d, update_scale);
    start_product_mn<Owner::kIo>(own.state, update, tiles_of<Owner::kConfig>(own.shared, chunk, current.index).key);
    start_caching(own, chunk);
    wait_for_product(own.state);
    own.round_state();
    finish_caching(own);
    own.release(current.index);
}

// Where registers do not hold both V' and the output: the output replaces V', and gets the products with V's residual.
template <class Owner, class Stage, class Matrices, class Factors>
__device__ __forceinline__ void replace_by_output(Owner& own, TokenFragment& d, const TokenOperand& x, const Stage& stage,
                                                  const Matrices& matrices, const Factors& factors) {
    TokenOperand residual;
    pack_tokens_residual<Owner::kIo>(residual, d, x);
    if (own.thread == 0) cute::tma_store_wait<0>();
    own.warpgroup_sync();
    auto* kept =
        reinterpret_cast<volatile unsigned*>(own.shared.output[own.index()].bytes) + own.thread;  // registers are short
#pragma unroll
    for (int i = 0; i < 4 * kTokenSteps; ++i) kept[i * kWarpgroup] = residual[i / 4][i % 4];
    start_product<Owner::kIo>(d, own.rounded_state, stage.query);
    wait_for_product(d);
    TokenFactors query_scale;
    read_factors(query_scale, factors.query_scale, own.t);
    scale_tokens(d, query_scale);
#pragma unroll
    for (int i = 0; i < 4 * kTokenSteps; ++i) residual[i / 4][i % 4] = kept[i * kWarpgroup];
    start_product<Owner::kIo>(d, residual, &matrices.scores, true);
    wait_for_product(d);
}

// From V' to the next state and the chunk's output.
template <bool kTwoPart, class Owner, int kOutput>
__device__ __forceinline__ void finish(Owner& own, TokenFragment& d, float (&output)[kOutput], TokenFactors& update_scale,
                                       int hot_chunk, bool by_tma) {
    constexpr DType kIo = Owner::kIo;
    const int chunk = kTwoPart ? opaque(hot_chunk) : hot_chunk;  // so the hot path keeps no addresses for the rare one
    const PipelineStage<Owner::kConfig.stages> current(chunk);
    const auto& stage = tiles_of<Owner::kConfig>(own.shared, chunk, current.index);
    const auto& matrices = own.shared.matrices[chunk % Owner::kConfig.slots()];
    const auto& factors = own.shared.factors[current.index];
    TokenOperand x, update;
    if constexpr (kTwoPart) start_caching(own, chunk);
    if constexpr (kTwoPart) add_values_residual_to_state(own, d, update_scale, stage.key);
    pack_scaled_tokens<kIo>(update, d, update_scale);
    pack_tokens<kIo>(x, d);
    if constexpr (kKeepsOutput<Owner>) {
        if constexpr (kTwoPart) {
            add_values_residual<Owner>(output, d, x, matrices.scores);
            add_scores_residual(own, output, x, stage, factors);
        }
        start_product<kIo>(output, x, &matrices.scores, true);
        start_product_mn<kIo>(own.state, update, stage.key);
        wait_for_product<1>(output);
        store_output(own, output, chunk, by_tma);
        wait_for_product(own.state);
        own.round_state();
        if constexpr (kTwoPart) finish_caching(own);
        own.release(current.index);
    } else {
        start_product_mn<kIo>(own.state, update, stage.key);
        if constexpr (kTwoPart) {
            wait_for_product(own.state);
            warpgroup_fence_operand(d);
            replace_by_output(own, d, x, stage, matrices, factors);
            add_scores_residual(own, d, x, stage, factors);
        } else {
            start_product<kIo>(d, own.rounded_state, stage.query);
            TokenFactors query_scale;
            read_factors(query_scale, factors.query_scale, own.t);
            wait_for_product(own.state);
            warpgroup_fence_operand(d);
            scale_tokens(d, query_scale);
        }
        own.round_state();
        start_product<kIo>(d, x, &matrices.scores, true);
        wait_for_product(d);
        if constexpr (kTwoPart) finish_caching(own);
        own.release(current.index);
        store_output(own, d, chunk, by_tma);
    }
}

// Matrix products may spread NaN over a chunk that resets the state: stops before one, unless it is `checked` already.
template <class Owner>
__device__ __forceinline__ int run_chunks(Owner& own, int first, int checked) {
    constexpr ChunkedConfig kConfig = Owner::kConfig;
    constexpr DType kIo = Owner::kIo;
    auto& shared = own.shared;
    const ChunkedWork& work = own.work;
    const GdnCall& call = own.args.call;
    const int length = work.tokens.length;
    int chunk = first;
#pragma unroll 1
    for (; chunk < work.tokens.chunks; ++chunk) {
        const PipelineStage<kConfig.stages> current(chunk);
        const auto& stage = tiles_of<kConfig>(shared, chunk, current.index);
        const auto& matrices = shared.matrices[chunk % kConfig.slots()];
        const auto& cancels = shared.cancels[chunk % kConfig.slots()];
        const auto& factors = shared.factors[current.index];
        own.find_lane();
        barrier(shared.matrices_full[current.index]).wait(current.parity);

        TokenOperand x;
        float d[32], output[kKeepsOutput<Owner> ? 32 : 1];
        TokenFactors scales;
        if constexpr (kConfig.is_wide())
            start_state_product<kIo, Rounding::plain>(d, own.state, stage.key);
        else
            start_product<kIo>(d, own.rounded_state, stage.key);
        if constexpr (kQueriesFirst<Owner>) start_product<kIo>(output, own.rounded_state, stage.query);
        load_operand(x, stage.value[own.index()], own);
        const float decay = shared.decay[current.index];
        const bool resets = __shfl_sync(0xffffffffu, __float_as_uint(decay), 0) == __float_as_uint(kResets);
        if constexpr (!kQueriesFirst<Owner>) read_factors(scales, factors.key_scale, own.t);
        wait_for_product<kQueriesFirst<Owner>>(d);
        if constexpr (kQueriesFirst<Owner>) read_factors(scales, factors.key_scale, own.t);  // registers are short before
        const bool warm_up = !kConfig.persistent && chunk < work.tokens.first_output;
        form_x<kIo>(x, x, d, scales);
        if (resets && chunk != checked) [[unlikely]] {
            if constexpr (kQueriesFirst<Owner>)  // ptxas serialises all wgmmas of a loop that exits with some in flight
                wait_for_product(output);
            break;
        }
        bool without_tma;
        if constexpr (kConfig.is_wide()) {
            without_tma = is_packed(own.args) && end_of<kConfig>(work.tokens, chunk) > length;
            if (__shfl_sync(0xffffffffu, reinterpret_cast<const unsigned&>(cancels), 0) != 0) [[unlikely]]
                finish_wide_in_two_parts(own, d, output, x, chunk, !without_tma);
            else
                finish_wide(own, d, output, x, decay, chunk, !without_tma);
        } else {
            start_product<kIo>(d, x, &matrices.inverse);
            const bool two_part = __shfl_sync(0xffffffffu, reinterpret_cast<const unsigned&>(cancels), 0) != 0;
            if constexpr (kQueriesFirst<Owner>) {
                read_factors(scales, factors.query_scale, own.t);
                wait_for_product<1>(output);
                scale_tokens(output, scales);
            }
            scale_fragment(own.state, decay);
            read_factors(scales, factors.update_scale, own.t);
            wait_for_product(d);
            without_tma = is_packed(own.args) && end_of<kConfig>(work.tokens, chunk) > length;
            if (two_part) [[unlikely]] {
                add_inverse_residual<Owner>(d, x, cancels, matrices.inverse_residual);
                finish<true>(own, d, output, scales, chunk, !without_tma && !warm_up);
            } else if (warm_up) [[unlikely]] {
                finish_without_output(own, d, scales, chunk);
            } else {
                finish<false>(own, d, output, scales, chunk, !without_tma);
            }
        }
        if (without_tma && !warm_up) [[unlikely]]
            store_output_without_tma(own, chunk);
        if (!kConfig.persistent && ends_checkpoint(own, chunk)) [[unlikely]]
            store_state(own, checkpoint(own, chunk));
    }
    return chunk;
}
template <class Owner>
__device__ __forceinline__ void run_chunk_by_tokens(Owner& own, int chunk) {
    constexpr ChunkedConfig kConfig = Owner::kConfig;
    const bool stores = kConfig.persistent || chunk >= own.work.tokens.first_output;
    const bool without_tma = is_packed(own.args) && end_of<kConfig>(own.work.tokens, chunk) > own.work.tokens.length;
    own.find_lane();
    if (own.thread == 0) cute::tma_store_wait<0>();
    own.warpgroup_sync();
    start_caching(own, chunk);
    run_tokens(own, chunk);
    store_output_tile(own, chunk, stores && !without_tma);
    if (stores && without_tma) store_output_without_tma(own, chunk);
    if (!kConfig.persistent && ends_checkpoint(own, chunk)) store_state(own, checkpoint(own, chunk));
    own.round_state();
    finish_caching(own);
    if constexpr (kConfig.is_wide())
        release_chunk(own, chunk);
    else
        own.release(PipelineStage<kConfig.stages>(chunk).index);
}

struct GdnRule {
    template <class Owner>
    __device__ __forceinline__ static void run(Owner& own, int first) {
        for_each_chunk(
            own, first, [&](int chunk, int checked) { return run_chunks(own, chunk, checked); },
            [&](int chunk) { run_chunk_by_tokens(own, chunk); });
    }
};
template <ChunkedConfig kConfig>
using GdnValueRole = ValueRole<kConfig, GdnRule>;

}  // namespace gdn_cuda::gdn
