// How a pass of a value warpgroup begins and ends: the state that it starts from, and where its result goes.
#pragma once

#include <gdn_cuda/kernels/chunked/summary.cuh>

namespace gdn_cuda::gdn {

template <class Owner>
__device__ __forceinline__ void begin_pass(Owner& own) {
    constexpr PrefillConfig kConfig = Owner::kConfig;
    const PrefillWork& work = own.work;
    if (kConfig.linked && work.from >= 0) {
        const bool of_group = own.is_pass(PrefillPass::group_transfer) || own.is_pass(PrefillPass::group_summary);
        if (own.thread == 0 && of_group)
            await_summary<kConfig>(own.args.links, work.from, gridDim.x);
        else if (own.thread == 0 && work.from < own.args.links.all)
            await_state<kConfig>(own.args.links, work.from);
        own.warpgroup_sync();
        if (own.is_pass(PrefillPass::group_transfer))
            load_transfer(own, work.from);
        else
            load_linked(own, work.from);
        follow_links(own);
    } else if (own.is_pass(PrefillPass::transfer)) {
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
    if (own.is_pass(PrefillPass::transfer) || own.is_pass(PrefillPass::group_transfer))
        store_transfer(own);
    else if (Owner::kConfig.linked && own.work.to >= 0)
        store_linked(own, own.work.to);
    else
        store_state(own, final_state(own));
    signal_summary_written(own);
}

}  // namespace gdn_cuda::gdn
