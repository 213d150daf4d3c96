// The chain backward in time with a gate for every channel of the key (gdn/kda/training_record.cuh), r T and P as they are
// there and s inverse norms of queries times the scale:
//
//     dV' / r = P^T s dO + K_out E^T      dV = (r T)^T (dV' / r)      E <- E diag(g_64) + (s dO)^T Q_in - (r dV)^T K_in.
//
// s dO is rounded once, for both of its products. Parts are used as in StateGradients.
#pragma once

#include <gdn_cuda/kernels/gdn/backward_chain/gradients.cuh>

namespace gdn_cuda::gdn {

template <BackwardChainConfig kConfig>
struct KdaStateGradients : StateGradientRoles<kConfig> {
    using Base = StateGradientRoles<kConfig>;
    using Base::kBlock, Base::kIo, Base::shared, Base::args, Base::work;
    using typename Base::Stage;

    struct ReadAhead {
        TokenOperand scaled;  // s dO
        StateDecay<kConfig> decay;
        bool two_part;
    };
    template <class Owner>
    __device__ __forceinline__ void read_ahead(const Owner& own, ReadAhead& next, int chunk) const {
        const Stage at(chunk);
        const auto& factors = shared.factors[at.index];
        barrier(shared.stage_full[at.index]).wait(at.parity);
        TokenOperand output_gradient;
        TokenFactors scales;
        load_operand(output_gradient, shared.stages[at.index].value[0], own);
        read_factors(scales, factors.query_norm, own.t);
        for (float2& each : scales) each = {args.call.scale * each.x, args.call.scale * each.y};
        scale_operand<kIo>(next.scaled, output_gradient, scales);
        next.decay.read(factors, own.t);
        next.two_part = cancels(factors);
    }
    template <class Owner>
    __device__ __forceinline__ void run_chain(Owner& own) const {
        this->run_chunks(*this, own);
    }
    template <class Owner>
    __device__ __forceinline__ void run_chunk(Owner& own, ReadAhead& ahead, int chunk, bool more, bool without_tma) const {
        const Stage current(chunk);
        const auto& stage = shared.stages[current.index];
        own.find_lane();

        TokenOperand operand, residual;
        TokenFragment d, values;
        TokenFactors scales;
        const bool two_part = ahead.two_part;
        if (two_part) [[unlikely]] {
            barrier(shared.output_empty).wait(chunk & 1 ^ 1);
            load_scores_residual(own, chunk);
            start_product_mn<kIo>(d, ahead.scaled, &shared.output[0], false);
            wait_for_product(d);
            own.warpgroup_sync();  // the residual is in the outputs' tile
        }
        start_product<kIo>(d, own.rounded_state, stage.key_out, two_part);
        start_product_mn<kIo>(d, ahead.scaled, &stage.scores);
        ahead.decay.scale(own);
        start_product_mn<kIo>(own.state, ahead.scaled, stage.query);
        stage_state(own, chunk);
        wait_for_product<1>(d);
        pack_tokens<kIo>(operand, d);
        start_product_mn<kIo>(values, operand, &stage.inverse, false);
        start_product_mn<kIo>(values, operand, &stage.inverse_residual);
        pack_tokens_residual<kIo>(residual, d, operand);
        start_product_mn<kIo>(values, residual, &stage.inverse);
        read_factors(scales, shared.factors[current.index].key_norm, own.t);
        for (float2& scale : scales) scale = {-scale.x, -scale.y};
        wait_for_product(values);
        warpgroup_fence_operand(own.state);
        if (two_part) [[unlikely]]
            add_values_residual_to_state(own, values, scales, stage.key_in);
        pack_scaled_tokens<kIo>(operand, values, scales);
        start_product_mn<kIo>(own.state, operand, stage.key_in);
        this->put_values(own, values, chunk, without_tma);
        if (more) read_ahead(own, ahead, chunk + 1);
        wait_for_product(own.state);
        own.round_state();
        own.release(current.index);
    }

  private:
    // The rounding residual of P, into the outputs' tile.
    template <class Owner>
    __device__ __forceinline__ void load_scores_residual(const Owner& own, int chunk) const {
        const i64 index = first_prepared(args, work) + in_time<kBlock>(work.tokens, chunk);
        const auto& from = static_cast<const KdaTrainingRecord*>(args.to.prepared)[index].scores[1];
#pragma unroll
        for (int i = 16 * own.thread; i < static_cast<int>(sizeof(from)); i += 16 * kWarpgroup)
            *reinterpret_cast<uint4*>(shared.output[0].bytes + i) = *reinterpret_cast<const uint4*>(from.bytes + i);
        cutlass::arch::fence_view_async_shared();
        own.warpgroup_sync();
    }
};

}  // namespace gdn_cuda::gdn
