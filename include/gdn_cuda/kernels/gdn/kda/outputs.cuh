// The outputs of gdn/kda_own: o = scale r_q (Q_in S^T + P' X), of the 64 rows of the state that a chain owns. S and X come from
// the same warps of the chain, as left operands (kda/chain.cuh).
//
// S Q_in^T follows the chain's S K_in^T in the tensor cores' queue, and P' X its update of the state. Another warp stores the
// tile.
#pragma once

#include <gdn_cuda/kernels/gdn/kda/chain_parts.cuh>
#include <gdn_cuda/kernels/gdn/kda/loads.cuh>

namespace gdn_cuda::gdn {

template <ChunkedConfig kConfig>
struct KdaOutputs : KdaOwner<kConfig> {
    using Base = KdaOwner<kConfig>;
    using Base::kIo, Base::shared, Base::work, Base::rounded_state, Base::thread;

    // A work tile's. residual_parity: the last work tile's.
    __device__ __forceinline__ KdaOutputs(KdaOwnerPlan<kConfig>& shared, const ChunkedArgs& args, const KdaOwnWork& work,
                                          unsigned residual_parity)
        : Base(shared, args, work),
          begin(__shfl_sync(0xffffffffu, work.begin, 0)),  // uniform for the compiler
          residual_parity(residual_parity) {}

    // Returns residual_parity.
    __device__ __forceinline__ unsigned run() {
#pragma unroll 1
        for (int chunk = begin; chunk < work.tokens.chunks; ++chunk) {
            const PipelineStage<kConfig.stages> current(chunk);
            auto& stage = shared.stages[current.index];
            const unsigned parity = chunk & 1;
            barrier(shared.state_full).wait(parity);
            load_operand(rounded_state, shared.fragments.state, thread);
            arrive_by_warp(*this, shared.state_empty);
            barrier(shared.products_queued).wait(parity);
            barrier(shared.stage_full[current.index]).wait(current.parity);
            TokenFragment output;
            TokenFactors query_norm;
            start_product<kIo>(output, rounded_state, stage.query_in);
            read_factors(query_norm, shared.factors[current.index].query_norm, this->t);
            const bool cancels = __shfl_sync(0xffffffffu, shared.flags[current.index], 0) & kKdaCancels;
            wait_for_product(output);
            if (cancels) [[unlikely]]
                arrive_by_warp(*this, shared.tiles_read);
            barrier(shared.values_full).wait(parity);
            const bool by_tokens = __shfl_sync(0xffffffffu, shared.by_tokens, 0);
            TokenOperand x;
            if (!by_tokens) load_operand(x, shared.fragments.values, thread);
            arrive_by_warp(*this, shared.values_empty);
            if (by_tokens) [[unlikely]] {
                residual_parity ^= cancels;
                continue;
            }
            start_product<kIo>(output, x, &stage.scores, true);
            wait_for_product(output);
            if (cancels) [[unlikely]] {
                barrier(shared.residual_full).wait(residual_parity);
                residual_parity ^= 1;
                start_product<kIo>(output, x, stage.scores_residual(), true);
                wait_for_product(output);
            }
            scale_tokens(output, query_norm);
            write_tokens_tile<kIo>(stage.value, output, *this);  // the chain has read the values: it has handed over X
            store_output(*this, chunk, stage.value);
        }
        return residual_parity;
    }

  private:
    const int begin;
    unsigned residual_parity;
};

}  // namespace gdn_cuda::gdn
