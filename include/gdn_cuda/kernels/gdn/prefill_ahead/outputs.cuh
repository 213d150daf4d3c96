// The outputs of gdn/prefill_ahead: o = scale exp(G) q S^T + P V', of the 64 rows of the state that a chain owns. S and V' come
// from the same warps of the chain, as left operands (prefill_ahead/chain.cuh).
//
// S q^T follows the chain's X^T T^T in the tensor cores' queue, and P V' the update of the state. Another warp stores the tile.
#pragma once

#include <gdn_cuda/kernels/chunked/ahead/handover.cuh>
#include <gdn_cuda/kernels/chunked/two_part.cuh>

namespace gdn_cuda::gdn {

// A chunk without outputs: only the barriers on which the chain and the storing warp wait.
template <class Owner>
__device__ __forceinline__ void skip_outputs(const Owner& own, int chunk) {
    auto& shared = own.shared;
    const unsigned parity = chunk & 1;
    barrier(shared.state_full).wait(parity);
    arrive_by_warp(own, shared.state_empty);
    barrier(shared.products_queued).wait(parity);
    barrier(shared.output_empty).wait(parity ^ 1);
    barrier(shared.values_full).wait(parity);
    arrive_by_warp(own, shared.values_empty);
    own.release(PipelineStage<Owner::kConfig.stages>(chunk).index);
    if (own.thread == 0) shared.is_stored = true;
    arrive_by_warp(own, shared.output_full);
}
// Adds P V' and writes the tile; returns whether it was stored, too.
template <class Owner>
__device__ __forceinline__ bool finish_outputs(const Owner& own, TokenFragment& output, int chunk, bool two_part) {
    constexpr DType kIo = Owner::kIo;
    auto& shared = own.shared;
    const int at = PipelineStage<Owner::kConfig.stages>(chunk).index;
    const auto& stage = shared.stages[at];
    TokenOperand x;
    load_operand(x, shared.fragments.values, own.thread);
    arrive_by_warp(own, shared.values_empty);
    if (two_part) [[unlikely]] {
        TokenOperand residual;
#pragma unroll
        for (int step = 0; step < kTokenSteps; ++step)
            to_operand(residual[step], load_shared(values_vector(stage.value[0], step, own)));
        start_product<kIo>(output, residual, &stage.scores, true);
        wait_for_product(output);
        add_scores_residual(own, output, x, stage, shared.factors[at]);
        own.warpgroup_sync();  // the tile held the residual
    }
    start_product<kIo>(output, x, &stage.scores, true);
    wait_for_product(output);
    write_output_tile(own, output);
    if (!is_packed(own.args) || end_of<Owner::kConfig>(own.work.tokens, chunk) <= own.work.tokens.length) [[likely]]
        return false;
    own.warpgroup_sync();
    store_output_without_tma(own, chunk);
    return true;
}

template <ChunkedConfig kConfig>
__device__ __forceinline__ void run_outputs(OwnerPlan<kConfig>& shared, const ChunkedArgs& args) {
    AheadOwner<kConfig> own(shared, args, shared.work);
#pragma unroll 1
    for (int chunk = 0; chunk < own.work.tokens.chunks; ++chunk) {
        if (chunk < own.work.tokens.first_output) {
            skip_outputs(own, chunk);
            continue;
        }
        const PipelineStage<kConfig.stages> current(chunk);
        const auto& stage = shared.stages[current.index];
        const auto& factors = shared.factors[current.index];
        const unsigned parity = chunk & 1;
        barrier(shared.state_full).wait(parity);
        load_operand(own.rounded_state, shared.fragments.state, own.thread);
        arrive_by_warp(own, shared.state_empty);
        barrier(shared.products_queued).wait(parity);  // so the chain has seen the stage loaded
        TokenFragment output;
        TokenFactors query_scale;
        start_product<kConfig.io>(output, own.rounded_state, stage.query);
        read_factors(query_scale, factors.query_scale, own.t);
        const bool two_part = __shfl_sync(0xffffffffu, reinterpret_cast<const unsigned&>(factors.cancels), 0) != 0;
        wait_for_product(output);
        scale_tokens(output, query_scale);
        barrier(shared.output_empty).wait(parity ^ 1);  // the chunk before has been stored
        barrier(shared.values_full).wait(parity);
        const bool by_tokens = __shfl_sync(0xffffffffu, shared.by_tokens, 0);
        bool is_stored = by_tokens;
        if (by_tokens) [[unlikely]]
            arrive_by_warp(own, shared.values_empty);
        else
            is_stored = finish_outputs(own, output, chunk, two_part);
        own.release(current.index);
        if (own.thread == 0) shared.is_stored = is_stored;
        arrive_by_warp(own, shared.output_full);
    }
}

}  // namespace gdn_cuda::gdn
