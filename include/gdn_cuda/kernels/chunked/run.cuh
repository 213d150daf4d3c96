// How a block runs: its roles, with their registers, over the passes of one segment or over work tiles one after another.
#pragma once

#include <gdn_cuda/kernels/chunked/block.cuh>
#include <gdn_cuda/kernels/chunked/inverse.cuh>
#include <gdn_cuda/kernels/chunked/persistent.cuh>
#include <gdn_cuda/kernels/chunked/scores.cuh>

namespace gdn_cuda::gdn {

// One role's loop over the block's passes, if it may have several; the kPrepares role sets up each next pass for all.
template <class Role, bool kPrepares, PrefillConfig kConfig>
__device__ __forceinline__ void run_passes(PrefillSharedPlan<kConfig>& shared, const PrefillArgs& args) {
#pragma unroll 1
    while (true) {
        Role(shared, args).run();
        if (!kConfig.linked || shared.passes_left == 0) break;
        NamedBarrier::sync(kConfig.threads(), kBlockBarrier);
        if (kPrepares && threadIdx.x == 0) {
            shared.work = shared.passes[--shared.passes_left];
            set_barriers<false>(shared);
        }
        NamedBarrier::sync(kConfig.threads(), kBlockBarrier);
    }
}

// A block that takes one segment. Values: the rule's value role.
template <template <PrefillConfig> class Values, PrefillConfig kConfig>
__device__ __forceinline__ void run_block(PrefillSharedPlan<kConfig>& shared, const PrefillArgs& args) {
    PrefillBlock<kConfig> block(args, shared);
    if (!block.find_start(shared.factors[0].gate)) return;
    if (threadIdx.x == 0) {
        block.plan_passes(shared);
        set_barriers<true>(shared);
    }
    clear_matrices<kConfig>(shared);
    __syncthreads();

    const int group = __shfl_sync(0xffffffffu, threadIdx.x / kWarpgroup, 0);  // warp-uniform for the compiler
    if (group == 0) {
        cutlass::arch::warpgroup_reg_dealloc<kConfig.scores_registers()>();
        run_passes<PrefillScores<kConfig>, true>(shared, args);
    } else if (group < kConfig.first_value_group()) {
        cutlass::arch::warpgroup_reg_dealloc<kConfig.inverse_registers()>();
        run_passes<PrefillInverse<kConfig>, false>(shared, args);
    } else {
        cutlass::arch::warpgroup_reg_alloc<kConfig.value_registers()>();
        run_passes<Values<kConfig>, false>(shared, args);
    }
}

// The value role's loop over the block's items.
template <class Role, PrefillConfig kConfig>
__device__ __forceinline__ void run_items(PrefillSharedPlan<kConfig>& shared, const PrefillArgs& args) {
#pragma unroll 1
    for (int number = 0;; ++number) {
        const PrefillItem& item = slot_of(shared.items, number);
        if (item.chunks == PrefillItem::kNone) break;
        Role(shared, args, item).run();
    }
}

// A persistent block.
template <template <PrefillConfig> class Values, PrefillConfig kConfig>
__device__ __forceinline__ void run_persistent(PrefillSharedPlan<kConfig>& shared, const PrefillArgs& args) {
    finish_items_without_chunks<kConfig>(args);
    if (threadIdx.x < 32) {
        if (threadIdx.x == 0) {
            shared.items.begun = shared.items.planned = shared.items.planned_chunks = 0;
            shared.items.next = static_cast<int>(blockIdx.x);
            set_barriers<true>(shared);
        }
        __syncwarp();
        plan_item(shared, args);
        plan_items(shared, args);
    }
    clear_matrices<kConfig>(shared);
    __syncthreads();

    const int group = __shfl_sync(0xffffffffu, threadIdx.x / kWarpgroup, 0);  // warp-uniform for the compiler
    if (group == 0) {
        cutlass::arch::warpgroup_reg_dealloc<kConfig.scores_registers()>();
        PrefillScores<kConfig>(shared, args).run();
    } else if (group < kConfig.first_value_group()) {
        cutlass::arch::warpgroup_reg_dealloc<kConfig.inverse_registers()>();
        PrefillInverse<kConfig>(shared, args).run();
    } else {
        cutlass::arch::warpgroup_reg_alloc<kConfig.value_registers()>();
        run_items<Values<kConfig>>(shared, args);
        if (threadIdx.x % kWarpgroup == 0) cute::tma_store_wait<0>();
    }
}

}  // namespace gdn_cuda::gdn
