// What gdn/kda_own's chain does with its 64 rows of the state, and reads ahead of a chunk.
#pragma once

#include <gdn_cuda/kernels/chunked/ahead/handover.cuh>
#include <gdn_cuda/kernels/chunked/state.cuh>
#include <gdn_cuda/kernels/gdn/kda/own_plan.cuh>

namespace gdn_cuda::gdn {

template <ChunkedConfig kConfig>
using KdaOwner = StateOwner<kConfig, KdaOwnerPlan<kConfig>>;

// What state_before and state_after need of an owner.
struct KdaPlaces {
    const ChunkedArgs& args;
    const ChunkedWork& work;
};
// Where a window begins or ends inside the sequence.
template <class Owner>
__device__ __forceinline__ StatePlace in_final_states(const Owner& own, const KdaOwnWork& work) {
    return place_of_head(own, static_cast<const float*>(own.args.call.last.data) + work.states.last_slot);
}
// For a work tile, whose L and M start from zero and from the identity.
template <class Owner>
__device__ __forceinline__ StatePlace state_before(const Owner& own, const KdaOwnWork& work) {
    if (work.work_tile.rows != KdaOwnRows::outputs) return {};
    if (work.work_tile.before != nullptr) return {work.work_tile.before};
    return work.states.begins ? initial_state(own) : in_final_states(own, work);
}
template <class Owner>
__device__ __forceinline__ StatePlace state_after(const Owner& own, const KdaOwnWork& work) {
    if (work.work_tile.after != nullptr) return {work.work_tile.after};
    return work.states.ends ? final_state(own) : in_final_states(own, work);
}

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
    next.flags = __shfl_sync(0xffffffffu, own.shared.flags[at.index], 0);  // uniform for the compiler
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

}  // namespace gdn_cuda::gdn
