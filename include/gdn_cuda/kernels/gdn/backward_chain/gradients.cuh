// The rule of the chain backward in time: E, the gradient of the state, from the last chunk to the first,
//
//     dV' = P^T dO + exp(G_C - G) K E^T      dV = T^T dV'      E <- exp(G_C) E + (scale exp(G) dO)^T Q - (exp(G) dV)^T K,
//
// with T and P of the helper roles, whose tiles are read in their other orientation. A reset scales E by 0. T and dV' are used
// in two 16-bit parts; P, and dV in the update of E, where entries of T cancel.
#pragma once

#include <gdn_cuda/kernels/chunked/two_part.cuh>
#include <gdn_cuda/kernels/chunked/value_role.cuh>
#include <gdn_cuda/kernels/gdn/backward_chain/handover.cuh>

namespace gdn_cuda::gdn {

// Rounded to a left operand: x times factors.
template <DType kIo>
__device__ __forceinline__ void scale_operand(TokenOperand& scaled, const TokenOperand& x, const TokenFactors& factors) {
#pragma unroll
    for (int step = 0; step < kTokenSteps; ++step)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 pair = unpack<kIo>(x[step][i]), factor = factors[2 * step + i / 2];
            scaled[step][i] = pack<kIo>(pair.x * factor.x, pair.y * factor.y);
        }
}

struct StateGradientsRule {
    template <class Owner>
    __device__ __forceinline__ static void run(Owner& own, int first) {
#pragma unroll 1
        for (int chunk = first; chunk < own.work.tokens.chunks; ++chunk) run_chunk(own, chunk);
    }

  private:
    template <class Owner>
    __device__ __forceinline__ static void run_chunk(Owner& own, int chunk) {
        constexpr ChunkedConfig kConfig = Owner::kConfig;
        constexpr DType kIo = Owner::kIo;
        auto& shared = own.shared;
        const PipelineStage<kConfig.stages> current(chunk);
        const auto& stage = shared.stages[current.index];
        const auto& matrices = shared.matrices[chunk % (kConfig.stages - 1)];
        const auto& cancels = shared.cancels[chunk % (kConfig.stages - 1)];
        const auto& factors = shared.factors[current.index];
        own.find_lane();
        barrier(shared.matrices_full[current.index]).wait(current.parity);

        TokenOperand output_gradient, operand;
        TokenFragment d;
        TokenFactors scales;
        start_product<kIo>(d, own.rounded_state, stage.key);
        load_operand(output_gradient, stage.value[own.index()], own);
        const bool two_part = __shfl_sync(0xffffffffu, reinterpret_cast<const unsigned&>(cancels), 0) != 0;
        const i64 index = handover_index(own, chunk);
        store_rounded_state(own, index);
        store_scalars(own, index, current.index, two_part);
        read_factors(scales, factors.update_scale, own.t);
        wait_for_product(d);
        scale_tokens(d, scales);
        start_product_mn<kIo>(d, output_gradient, &matrices.scores);
        if (two_part) [[unlikely]] {
            wait_for_product(d);
            start_product_mn<kIo>(d, output_gradient, &form_scores_residual(own, stage, factors));
        }
        wait_for_product(d);
        {
            TokenOperand residual;  // what rounding dV' leaves
            pack_tokens<kIo>(operand, d);
            pack_tokens_residual<kIo>(residual, d, operand);
            start_product_mn<kIo>(d, residual, &matrices.inverse, false);
            start_product_mn<kIo>(d, operand, &matrices.inverse);
            start_product_mn<kIo>(d, operand, &matrices.inverse_residual);
        }
        scale_fragment(own.state, shared.decay[current.index]);
        read_factors(scales, factors.query_scale, own.t);
        wait_for_product(d);
        scale_operand<kIo>(operand, output_gradient, scales);
        start_product_mn<kIo>(own.state, operand, stage.query);
        read_factors(scales, factors.key_scale, own.t);
        for (float2& scale : scales) scale = {-scale.x, -scale.y};
        if (two_part) [[unlikely]]
            add_values_residual_to_state(own, d, scales, stage.key);
        TokenOperand update;
        pack_scaled_tokens<kIo>(update, d, scales);
        start_product_mn<kIo>(own.state, update, stage.key);
        const bool without_tma = is_packed(own.args) && end_of<kConfig>(own.work.tokens, chunk) > own.work.tokens.length;
        store_output(own, d, chunk, !without_tma);
        if (without_tma) store_output_without_tma(own, chunk);
        wait_for_product(own.state);
        own.round_state();
        own.release(current.index);
    }
};

}  // namespace gdn_cuda::gdn
