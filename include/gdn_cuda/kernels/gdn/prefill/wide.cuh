// The second half of a chunk for 64 rows of a state with more than 128 columns, of which registers hold no rounded copy: from
// X to the next state and the outputs. S q^T runs beside T X, after S k^T, and hides what is done with V'.
#pragma once

#include <gdn_cuda/kernels/chunked/two_part.cuh>

namespace gdn_cuda::gdn {

template <class Owner>
__device__ __forceinline__ void release_rows(const Owner& own, int chunk) {
    own.release(own.shared.rows_empty[PipelineStage<Owner::kConfig.row_stages()>(chunk).index]);
}

template <class Owner>
__device__ __forceinline__ void finish_wide(Owner& own, TokenFragment& d, TokenFragment& output, TokenOperand& x, float decay,
                                            int chunk, bool by_tma) {
    constexpr DType kIo = Owner::kIo;
    const PipelineStage<Owner::kConfig.stages> current(chunk);
    const auto& stage = tiles_of<Owner::kConfig>(own.shared, chunk, current.index);
    const auto& matrices = own.shared.matrices[chunk % Owner::kConfig.slots()];
    const auto& factors = own.shared.factors[current.index];
    start_product<kIo>(d, x, &matrices.inverse);
    start_state_product<kIo, Rounding::swapped>(output, own.state, stage.query, [&] { own.release(own.shared.inverse_empty); });
    warpgroup_fence_operand(d);
    TokenOperand update;
    TokenFactors scales;
    read_factors(scales, factors.update_scale, own.t);
    pack_scaled_tokens<kIo>(update, d, scales);
    pack_tokens<kIo>(x, d);
    scale_fragment(own.state, decay);
    wait_for_product(output);
    release_rows(own, chunk);
    read_factors(scales, factors.query_scale, own.t);  // registers are short before
    scale_tokens(output, scales);
    start_product<kIo>(output, x, &matrices.scores, true);
    start_product_mn<kIo>(own.state, update, stage.key);
    wait_for_product<1>(output);
    own.release(own.shared.scores_empty);
    store_output(own, output, chunk, by_tma);
    wait_for_product(own.state);
    own.release(current.index);
}

// All of a chunk at once.
template <class Owner>
__device__ __forceinline__ void release_chunk(const Owner& own, int chunk) {
    release_rows(own, chunk);
    own.release(own.shared.inverse_empty);
    own.release(own.shared.scores_empty);
    own.release(PipelineStage<Owner::kConfig.stages>(chunk).index);
}

// The same where entries of T cancel: one product after another, and P's residual first, while there are registers for it.
template <class Owner>
__device__ __forceinline__ void finish_wide_in_two_parts(Owner& own, TokenFragment& d, TokenFragment& output, TokenOperand& x,
                                                         int hot_chunk, bool by_tma) {
    constexpr DType kIo = Owner::kIo;
    const int chunk = opaque(hot_chunk);  // so the hot path keeps no addresses for the rare one
    const PipelineStage<Owner::kConfig.stages> current(chunk);
    const int slot = chunk % Owner::kConfig.slots();
    const auto& stage = tiles_of<Owner::kConfig>(own.shared, chunk, current.index);
    const auto& matrices = own.shared.matrices[slot];
    const auto& factors = own.shared.factors[current.index];
    const SwizzledTile& scores_residual = form_scores_residual(own, stage, factors);
    start_product<kIo>(d, x, &matrices.inverse);
    wait_for_product(d);
    add_inverse_residual<Owner>(d, x, own.shared.cancels[slot], matrices.inverse_residual);
    start_state_product<kIo, Rounding::swapped>(output, own.state, stage.query);
    wait_for_product(output);
    TokenFactors scales;
    read_factors(scales, factors.query_scale, own.t);
    scale_tokens(output, scales);
    scale_fragment(own.state, own.shared.decay[current.index]);
    read_factors(scales, factors.update_scale, own.t);
    add_values_residual_to_state(own, d, scales, stage.key);
    pack_scaled_tokens<kIo>(x, d, scales);
    start_product_mn<kIo>(own.state, x, stage.key);
    wait_for_product(own.state);
    pack_tokens<kIo>(x, d);
    add_values_residual<Owner>(output, d, x, matrices.scores);
    start_product<kIo>(output, x, &matrices.scores, true);
    wait_for_product(output);
    start_product<kIo>(output, x, &scores_residual, true);
    wait_for_product(output);
    store_output(own, output, chunk, by_tma);
    release_chunk(own, chunk);
}

}  // namespace gdn_cuda::gdn
