// gdn/summary: L and M of segments of sequences, S <- S M + L, by the chunked form of gdn/prefill without outputs. A block
// takes 128 rows of L, or of M: those begin as rows of the identity, and have values of zero.
//
// M is computed where something is multiplied by it: in segments after a tail's first one, and in the first one if the tail has
// all chunks of its part and the caller wants M. gdn/summary/tails.cuh says what a tail and a segment are.
//
// Bound: latency around the roles, as in gdn/prefill: 1.7 us a chunk on an idle H200, up to 2.7 where all multiprocessors are
// busy (docs/kernels/gdn_summary.md).
#pragma once

#include <gdn_cuda/kernels/chunked/run.cuh>
#include <gdn_cuda/kernels/gdn/prefill/values.cuh>
#include <gdn_cuda/kernels/gdn/summary/plan.cuh>
#include <gdn_cuda/kernels/gdn/summary/segment_rows.cuh>

namespace gdn_cuda::gdn {

template <ChunkedConfig kConfig>
struct SegmentSchedule {
    ChunkedPlan<kConfig>& shared;
    const ChunkedArgs& args;
    SegmentRows rows;

    __device__ __forceinline__ bool start() const {
        if (threadIdx.x == 0) {
            const SummarySegment segment = rows.segment();
            ChunkedBlock<kConfig> block(args, segment.sequence, segment.sequence, 0, segment.head, rows.row_tile());
            block.plan_outputs(shared.work, segment.first, segment.last);
            if (rows.is_transition()) {
                shared.work.first_value = args.call.dv;  // past all values, where TMA fills with zeros
                shared.work.rows = args.call.dk;
            }
            set_barriers<true>(shared);
        }
        clear_matrices_and_sync(shared);
        return true;
    }
    __device__ __forceinline__ const ChunkedWork& work() const { return shared.work; }
    template <RoleName kRole>
    __device__ __forceinline__ bool next() const {
        return false;
    }
};

template <ChunkedConfig kConfig>
__device__ __forceinline__ void run_segment(const SegmentSchedule<kConfig>& schedule) {
    StateOwner<kConfig> own(schedule.shared, schedule.args, schedule.work());
    if (own.work.first_row + own.index() * kValueRows >= own.work.rows) return skip_chunks(own, 0);
    const float* before = schedule.rows.before();
    clear_fragment(own.state);
    if (schedule.rows.is_transition())
        set_identity(own.state, own);
    else if (before != nullptr)
        load_fragment(own.state, own, before);
    warpgroup_fence_operand(own.state);
    own.round_state();
    GdnRule::run(own, 0);
    own.find_lane();
    store_fragment(own.state, own, schedule.rows.after());
}

template <SummaryConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 1) summary(const __grid_constant__ SummaryArgs args) {
    constexpr ChunkedConfig kBlock = kConfig.block();
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& shared = *reinterpret_cast<ChunkedPlan<kBlock>*>(memory);
    static_assert(sizeof(shared) <= 227 * 1024);
    const SegmentRows rows{args.chunked.call, args.listed};
    if (!rows.has_work()) return;
    run_roles<kBlock>(SegmentSchedule<kBlock>{shared, args.chunked, rows}, [&](const auto& schedule) {
        cutlass::arch::warpgroup_reg_alloc<kBlock.value_registers()>();
        run_segment<kBlock>(schedule);
    });
}

}  // namespace gdn_cuda::gdn
