// The rule of the chain backward in time: E, the gradient of the state, from the last chunk to the first,
//
//     dV' = P^T dO + exp(G_C - G) K E^T      dV = T^T dV'      E <- exp(G_C) E + (scale exp(G) dO)^T Q - (exp(G) dV)^T K.
//
// T and P are read in the other orientation than forward. A reset scales E by 0. T and dV' are used in two 16-bit parts; P, and
// dV in the update of E, where entries of T cancel. P^T dO and dO^T Q do not need E: they run while K E^T is rounded.
#pragma once

#include <gdn_cuda/kernels/chunked/two_part.cuh>
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
    __device__ __forceinline__ static void run(Owner& own, int chunk) {
        constexpr ChunkedConfig kConfig = Owner::kConfig;
        constexpr DType kIo = Owner::kIo;
        auto& shared = own.shared;
        const PipelineStage<kConfig.stages> current(chunk);
        const auto& stage = shared.stages[current.index];
        const auto& factors = shared.factors[current.index];
        own.find_lane();
        barrier(shared.stage_full[current.index]).wait(current.parity);

        TokenOperand output_gradient, operand;
        TokenFragment d, sum;
        TokenFactors scales;
        load_operand(output_gradient, stage.value[own.index()], own);
        const bool two_part = __shfl_sync(0xffffffffu, reinterpret_cast<const unsigned&>(factors.cancels), 0) != 0;
        if (two_part) [[unlikely]] {
            start_product_mn<kIo>(sum, output_gradient, &form_scores_residual(own, stage, factors), false);
            wait_for_product(sum);
        }
        start_product<kIo>(d, own.rounded_state, stage.key);
        start_product_mn<kIo>(sum, output_gradient, &stage.scores, two_part);
        store_rounded_state(own, chunk);
        read_factors(scales, factors.query_scale, own.t);
        scale_operand<kIo>(operand, output_gradient, scales);
        scale_fragment(own.state, factors.decay);
        start_product_mn<kIo>(own.state, operand, stage.query);
        read_factors(scales, factors.update_scale, own.t);
        wait_for_product<1>(sum);
        warpgroup_fence_operand(d);
        for_each_token_pair(d, [&](int step, int i, float& x, float& next) {
            const float2 scale = scales[2 * step + i / 2];
            const int at = 8 * step + 2 * i;
            x = fmaf(x, scale.x, sum[at]);
            next = fmaf(next, scale.y, sum[at + 1]);
        });
        {
            TokenOperand residual;  // what rounding dV' leaves
            pack_tokens<kIo>(operand, d);
            start_product_mn<kIo>(sum, operand, &stage.inverse, false);
            start_product_mn<kIo>(sum, operand, &stage.inverse_residual);
            pack_tokens_residual<kIo>(residual, d, operand);
            start_product_mn<kIo>(sum, residual, &stage.inverse);
        }
        read_factors(scales, factors.key_scale, own.t);
        for (float2& scale : scales) scale = {-scale.x, -scale.y};
        wait_for_product(sum);
        warpgroup_fence_operand(own.state);
        if (two_part) [[unlikely]]
            add_values_residual_to_state(own, sum, scales, stage.key);
        pack_scaled_tokens<kIo>(operand, sum, scales);
        start_product_mn<kIo>(own.state, operand, stage.key);
        const bool without_tma = is_packed(own.args) && end_of<kConfig>(own.work.tokens, chunk) > own.work.tokens.length;
        store_output(own, sum, chunk, !without_tma);
        if (without_tma) store_output_without_tma(own, chunk);
        wait_for_product(own.state);
        own.round_state();
        own.release(current.index);
    }
};

}  // namespace gdn_cuda::gdn
