// The schedules of a block: each yields its work, one after another. Every role has a copy, and they agree.
//
//     start()        by the whole block: plans the first work and sets up shared memory; false if the block has none
//     work()         what the value role has to do
//     next<kRole>()  goes on to the next work; false after the last
#pragma once

#include <gdn_cuda/kernels/chunked/block.cuh>
#include <gdn_cuda/kernels/chunked/persistent.cuh>

namespace gdn_cuda::gdn {

enum class RoleName { scores, inverse, values };

// By the whole block, before the roles start: the helper roles write no zeros above the diagonal.
template <ChunkedConfig kConfig>
__device__ __forceinline__ void clear_matrices_and_sync(ChunkedPlan<kConfig>& shared) {
    constexpr int kVectors = sizeof(shared.matrices) / sizeof(uint4);
    for (int i = threadIdx.x; i < kVectors; i += kConfig.threads()) reinterpret_cast<uint4*>(shared.matrices)[i] = {};
    cutlass::arch::fence_view_async_shared();
    __syncthreads();
}

// The passes over one segment, or the only one over a sequence.
template <ChunkedConfig kConfig>
struct PassSchedule {
    ChunkedPlan<kConfig>& shared;
    const ChunkedArgs& args;

    __device__ __forceinline__ bool start() const {
        ChunkedBlock<kConfig> block(args, shared);
        if (!block.find_start(shared.factors[0].gate)) return false;
        if (threadIdx.x == 0) {
            block.plan_passes(shared);
            set_barriers<true>(shared);
        }
        clear_matrices_and_sync(shared);
        return true;
    }
    __device__ __forceinline__ const ChunkedWork& work() const { return shared.work; }
    // The scores role sets up the next pass for all. By then every role has ended its phases of all mbarriers, which are
    // initialised anew.
    template <RoleName kRole>
    __device__ __forceinline__ bool next() const {
        if (!kConfig.chained || shared.passes_left == 0) return false;
        NamedBarrier::sync(kConfig.threads(), kBlockBarrier);
        if (kRole == RoleName::scores && threadIdx.x == 0) {
            shared.work = shared.passes[--shared.passes_left];
            set_barriers<false>(shared);
        }
        NamedBarrier::sync(kConfig.threads(), kBlockBarrier);
        return true;
    }
};

// The work tiles of a persistent block. Helper roles go on from one to the next within a run.
template <ChunkedConfig kConfig>
struct WorkTileSchedule {
    ChunkedPlan<kConfig>& shared;
    const ChunkedArgs& args;
    int index = 0;

    __device__ __forceinline__ bool start() const {
        finish_work_tiles_without_chunks<kConfig>(args);
        if (threadIdx.x < 32) {
            if (threadIdx.x == 0) {
                shared.work_tiles.begun = shared.work_tiles.planned = shared.work_tiles.planned_chunks = 0;
                shared.work_tiles.next = static_cast<int>(blockIdx.x);
                set_barriers<true>(shared);
            }
            __syncwarp();
            plan_work_tile(shared, args);
            plan_work_tiles(shared, args);
        }
        clear_matrices_and_sync(shared);
        return has_work_tiles(shared.work_tiles);
    }
    __device__ __forceinline__ const WorkTile& work() const { return slot_at(shared.work_tiles, index); }
    template <RoleName kRole>
    __device__ __forceinline__ bool next() {
        if (kRole != RoleName::values) return false;
        ++index;
        return work().tokens.chunks != WorkTile::kNone;
    }
};

template <ChunkedConfig kConfig>
using ScheduleOf = cute::conditional_t<kConfig.persistent, WorkTileSchedule<kConfig>, PassSchedule<kConfig>>;

}  // namespace gdn_cuda::gdn
