// The chain of gdn/kda_own: the warpgroup that takes 64 rows of the state from chunk to chunk,
//
//     S K_in^T -> X -> S <- S diag(g) + X^T Z.
//
// Outputs are another warpgroup's (kda/outputs.cuh), which gets the rounded S and X as left operands.
#pragma once

#include <gdn_cuda/kernels/chunked/ahead/handover.cuh>
#include <gdn_cuda/kernels/chunked/state.cuh>
#include <gdn_cuda/kernels/gdn/kda/own_plan.cuh>

namespace gdn_cuda::gdn {

template <ChunkedConfig kConfig>
using KdaOwner = StateOwner<kConfig, KdaOwnerPlan<kConfig>>;

// What a chunk needs first, read while products of the chunk before run.
struct KdaReadAhead {
    TokenOperand values;
    TokenFactors key_norm;
    unsigned flags;
};
template <class Owner>
__device__ __forceinline__ void read_ahead(const Owner& own, KdaReadAhead& next, int chunk) {
    const PipelineStage<Owner::kConfig.stages> at(chunk);
    barrier(own.shared.stage_full[at.index]).wait(at.parity);
    next.flags = load_shared_word(shared_address(&own.shared.flags[at.index]));
    load_operand(next.values, own.shared.stages[at.index].value, own);
    read_factors(next.key_norm, own.shared.factors[at.index].key_norm, own.t);
}
// Columns of the state by their own factors.
template <class Owner>
__device__ __forceinline__ void scale_columns(Owner& own, const float (&factors)[kKdaHeadK]) {
#pragma unroll
    for (int n = 0; n < Owner::kConfig.head_k / 8; ++n) {
        const float2 factor = pair_at(&factors[8 * n + 2 * own.t]);
#pragma unroll
        for (int i = 0; i < 4; ++i) own.state[4 * n + i] *= i % 2 == 0 ? factor.x : factor.y;
    }
}

// The state as a left operand of a chunk, whose flags they are; uniform over the warp.
template <class Owner>
__device__ __forceinline__ void round_for_chunk(Owner& own, int chunk, unsigned flags) {
    if (!(flags & kKdaScaled)) return own.round_state();
    const auto& factors = own.shared.factors[PipelineStage<Owner::kConfig.stages>(chunk).index].middle;
#pragma unroll
    for (int n = 0; n < Owner::kConfig.head_k / 8; ++n) {
        const float2 factor = pair_at(&factors[8 * n + 2 * own.t]);
#pragma unroll
        for (int half = 0; half < 2; ++half)
            own.rounded_state[n / 2][n % 2 * 2 + half] =
                pack<Owner::kIo>(own.state[4 * n + 2 * half] * factor.x, own.state[4 * n + 2 * half + 1] * factor.y);
    }
}

template <ChunkedConfig kConfig>
struct KdaChain : KdaOwner<kConfig> {
    using Base = KdaOwner<kConfig>;
    using Base::kIo, Base::shared, Base::work, Base::state, Base::rounded_state, Base::thread;

    __device__ __forceinline__ KdaChain(KdaOwnerPlan<kConfig>& shared, const ChunkedArgs& args)
        : Base(shared, args, shared.work) {}

    __device__ __forceinline__ void run() {
        load_state(*this, initial_state(*this));
        warpgroup_fence_operand(state);
        run_chunks();
        store_state(*this, final_state(*this));
    }

  private:
    __device__ __forceinline__ void run_chunks() {
        const int chunks = work.tokens.chunks;
        KdaReadAhead ahead;
        read_ahead(*this, ahead, 0);
        round_for_chunk(*this, 0, __shfl_sync(0xffffffffu, ahead.flags, 0));
        hand_over_state(*this);
        unsigned residual_parity = 0;
#pragma unroll 1
        for (int chunk = 0; chunk < chunks; ++chunk) {
            const PipelineStage<kConfig.stages> current(chunk);
            auto& stage = shared.stages[current.index];
            TokenOperand x;
            TokenFragment d;
            start_product<kIo>(d, rounded_state, stage.key_in);
            barrier(shared.values_empty).wait(chunk & 1 ^ 1);  // so the outputs have seen the last phase of the next barrier
            arrive_by_warp(*this, shared.products_queued);
            scale_columns(*this, shared.factors[current.index].decay);
            const bool cancels = __shfl_sync(0xffffffffu, ahead.flags, 0) & kKdaCancels;
            wait_for_product(d);
            form_x<kIo>(x, ahead.values, d, ahead.key_norm);
            start_product_mn<kIo>(state, x, stage.update);
            if (cancels) [[unlikely]]
                arrive_by_warp(*this, shared.tiles_read);
            hand_over_values(*this, x);
            barrier(shared.state_empty).wait(chunk & 1);
            if (chunk + 1 < chunks) read_ahead(*this, ahead, chunk + 1);
            wait_for_product(state);
            if (cancels) [[unlikely]] {
                barrier(shared.residual_full).wait(residual_parity);
                residual_parity ^= 1;
                start_product_mn<kIo>(state, x, stage.update_residual());
                wait_for_product(state);
            }
            if (ends_checkpoint(*this, chunk)) [[unlikely]]
                store_state(*this, checkpoint(*this, chunk));
            if (chunk + 1 < chunks) round_for_chunk(*this, chunk + 1, __shfl_sync(0xffffffffu, ahead.flags, 0));
            this->release(current.index);
            hand_over_state(*this);
        }
    }
};

}  // namespace gdn_cuda::gdn
