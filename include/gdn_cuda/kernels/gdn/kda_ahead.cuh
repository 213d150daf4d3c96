// gdn/kda_ahead: gdn/kda_prepare and gdn/kda_own in one launch, where the owners of states leave multiprocessors free:
//
//     blocks that prepare         two halves, each one record after another -> records in global memory
//     blocks that own 64 rows     at first as the others, until enough records have been taken; then gdn/kda_own's roles, which
//                                 wait for each record
//
// The bits are those of the two launches. A block has a multiprocessor to itself.
//
// Blocks have their roles by the order in which they start: the first ones prepare until no record is left, so however few
// blocks are resident, those for which owners wait are running or have ended. Preparing waits for nobody. A half takes the
// next record by an atomic counter, in the window's order, in which owners read them.
//
// Bound: preparing (kda_prepare.cuh) and the chain (kda_own.cuh), at once.
#pragma once

#include <gdn_cuda/kernels/gdn/kda/ahead_preparer.cuh>
#include <gdn_cuda/kernels/gdn/kda_own.cuh>

namespace gdn_cuda::gdn {

// Which of the blocks this one is, by the order in which they start; -1 - n: the n-th that prepares. Read again rather than
// kept.
__device__ __forceinline__ int owner_of_block(const KdaHalfPlan* halves, const KdaAheadArgs& args) {
    forget_memory();
    return __shfl_sync(0xffffffffu, static_cast<int>(halves->place), 0) - args.preparers;  // uniform for the compiler
}

template <KdaAheadConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 1) kda_ahead(const __grid_constant__ KdaAheadArgs args) {
    constexpr ChunkedConfig kOwner = kConfig.owner();
    using Plan = KdaOwnerPlan<kOwner>;
    static_assert(sizeof(Plan) <= 227 * 1024 && kKdaHalves * sizeof(KdaHalfPlan) <= 227 * 1024);
    static_assert(kConfig.threads() == kKdaHalves * KdaPrepareConfig::threads());
    extern __shared__ __align__(1024) unsigned char memory[];
    wait_on_dependent_grids();
    auto* const halves = reinterpret_cast<KdaHalfPlan*>(memory);
    if (threadIdx.x == 0) halves->place = atomicAdd(args.counters, 1u);
    __syncthreads();
    const unsigned last = owner_of_block(halves, args) < 0 ? args.records() : args.first_records;
    if (last > 0) prepare_kda_records<kConfig>(halves, args, last);
    const int owner = owner_of_block(halves, args);
    if (owner < 0) return;
    Plan& shared = *reinterpret_cast<Plan*>(memory);
    cutlass::arch::fence_view_async_shared();  // what prepared records becomes stages
    __syncthreads();
    if (threadIdx.x == 0) {
        shared.by_tokens = false;
        set_barriers(shared);
    }
    __syncthreads();
    run_kda_owner<kOwner, true>(shared, args.own, owner, static_cast<int>(gridDim.x) - args.preparers);
}

}  // namespace gdn_cuda::gdn
