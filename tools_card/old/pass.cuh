// How a pass of a value warpgroup begins and ends: the state that it starts from, and where its result goes.
#pragma once

#include <gdn_cuda/kernels/chunked/summary.cuh>

namespace gdn_cuda::gdn {

template <class Owner>
__device__ __forceinline__ void begin_pass(Owner& own) {
    constexpr ChunkedConfig kConfig = Owner::kConfig;
    const i64 from = own.work.states.from;
    if (kConfig.chained && from >= 0) {
        const bool in_group = own.is_pass(ChunkedPass::group_transition) || own.is_pass(ChunkedPass::group_summary);
        if (own.thread == 0 && in_group)
            await_summary<kConfig>(own.args.summaries, from, gridDim.x);
        else if (own.thread == 0 && from < own.args.summaries.count)
            await_state<kConfig>(own.args.summaries, from);
        own.warpgroup_sync();
        if (own.is_pass(ChunkedPass::group_transition))
            load_transition(own, from);
        else
            load_chained_state(own, from);
        apply_summaries(own);
    } else if (own.is_pass(ChunkedPass::transition)) {
        set_identity(own.state, own);
    } else {
        load_state(own, initial_state(own));
    }
    signal_initial_state_read(own);
    warpgroup_fence_operand(own.state);  // otherwise each branch above gets registers of its own, and spills
    own.round_state();
}
template <class Owner>
__device__ __forceinline__ void end_pass(Owner& own) {
    own.find_lane();
    wait_for_readers(own);
    if (own.is_pass(ChunkedPass::transition) || own.is_pass(ChunkedPass::group_transition))
        store_transition(own);
    else if (Owner::kConfig.chained && own.work.states.to >= 0)
        store_chained_state(own, own.work.states.to);
    else
        store_state(own, final_state(own));
    signal_summary_written(own);
}

}  // namespace gdn_cuda::gdn
