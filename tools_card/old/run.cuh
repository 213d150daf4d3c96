// How a block runs: its roles, with their registers, over the work that its schedule yields.
#pragma once

#include <gdn_cuda/kernels/chunked/inverse.cuh>
#include <gdn_cuda/kernels/chunked/schedules.cuh>
#include <gdn_cuda/kernels/chunked/scores.cuh>

namespace gdn_cuda::gdn {

template <RoleName kRole, class Schedule, class Run>
__device__ __forceinline__ void for_each_work(Schedule schedule, Run&& run) {
#pragma unroll 1
    do run(schedule.work());
    while (schedule.template next<kRole>());
}

// kStrided: the helper roles prepare some of a segment's chunks for other blocks (gdn/prefill_ahead.cuh). run_values: called by
// the value warpgroups.
template <ChunkedConfig kConfig, bool kStrided = false, class Schedule, class RunValues>
__device__ __forceinline__ void run_roles(Schedule schedule, RunValues&& run_values) {
    if (!schedule.start()) return;
    auto& shared = schedule.shared;
    const ChunkedArgs& args = schedule.args;
    const int group = __shfl_sync(0xffffffffu, threadIdx.x / kWarpgroup, 0);  // warp-uniform for the compiler
    if (group == 0) {
        cutlass::arch::warpgroup_reg_dealloc<kConfig.scores_registers()>();
        for_each_work<RoleName::scores>(schedule, [&](const auto&) { ScoresRole<kConfig, kStrided>(shared, args).run(); });
    } else if (group < kConfig.first_value_group()) {
        cutlass::arch::warpgroup_reg_dealloc<kConfig.inverse_registers()>();
        for_each_work<RoleName::inverse>(schedule, [&](const auto&) { InverseRole<kConfig, kStrided>(shared, args).run(); });
    } else {
        run_values(schedule);
    }
}

// Values: the rule's value role.
template <template <ChunkedConfig> class Values, ChunkedConfig kConfig>
__device__ __forceinline__ void run_block(ChunkedPlan<kConfig>& shared, const ChunkedArgs& args) {
    run_roles<kConfig>(ScheduleOf<kConfig>{shared, args}, [&](auto& schedule) {
        cutlass::arch::warpgroup_reg_alloc<kConfig.value_registers()>();
        for_each_work<RoleName::values>(schedule, [&](const auto& work) { Values<kConfig>(shared, args, work).run(); });
        if (kConfig.persistent && threadIdx.x % kWarpgroup == 0) cute::tma_store_wait<0>();
    });
}

}  // namespace gdn_cuda::gdn
