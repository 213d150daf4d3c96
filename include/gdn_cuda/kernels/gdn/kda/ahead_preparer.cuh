// What prepares records in gdn/kda_ahead: half of a block, which takes one record after another, in the window's order, and
// announces each once it is in global memory.
#pragma once

#include <gdn_cuda/kernels/gdn/kda/ahead_plan.cuh>
#include <gdn_cuda/kernels/gdn/kda_prepare.cuh>
#include <gdn_cuda/kernels/hopper/counters.cuh>

namespace gdn_cuda::gdn {

// See KdaPreparingBlock.
struct KdaPreparingHalf {
    static constexpr unsigned kThreads = KdaPrepareConfig::threads();

    KdaHalfPlan& shared;
    unsigned* const taken;         // KdaAheadArgs::counters's
    const unsigned current, last;  // the record, and the first that is not to be taken

    __device__ __forceinline__ static unsigned index() { return threadIdx.x % kThreads; }
    __device__ __forceinline__ static int half() {
        return static_cast<int>(__shfl_sync(0xffffffffu, threadIdx.x / kThreads, 0));  // warp-uniform for the compiler
    }
    __device__ __forceinline__ static void sync() { NamedBarrier::sync(kThreads, half()); }
    __device__ __forceinline__ static int other_barrier() { return kKdaHalves + half(); }

    __device__ __forceinline__ static void start_barrier(Barrier&) {}
    // A record is taken early, so that nobody waits for the counter.
    __device__ __forceinline__ unsigned take_next() const {
        if (index() == kWarpgroup) announce();
        return index() == 0 && current < last ? atomicAdd(taken, 1u) : ~0u;
    }
    __device__ __forceinline__ void store_next(unsigned next) const {
        if (index() == 0) shared.next = next;
    }
    __device__ __forceinline__ void set_flags(unsigned& of_record, unsigned flags) const {
        shared.flag = &of_record;
        shared.flags = flags | kKdaReady;
    }
    __device__ __forceinline__ static void finish(Barrier& tiles_full, bool reloads) {
        if (index() == kWarpgroup && !reloads) tiles_full.arrive();  // every record has two phases
        sync();
    }
    // By the thread that has copied the record.
    __device__ __forceinline__ void announce() const {
        if (shared.flag == nullptr) return;
        wait_for_bulk_stores();
        red_release(shared.flag, shared.flags);
    }
};

// Takes records until `last` of them, or all, have been taken. By the whole block.
template <KdaAheadConfig kConfig>
__device__ __forceinline__ void prepare_kda_records(KdaHalfPlan* halves, const KdaAheadArgs& args, unsigned last) {
    using Half = KdaPreparingHalf;
    KdaHalfPlan& shared = halves[Half::half()];
    unsigned* const taken = args.counters + 1;
    if (Half::index() == 0) {
        barrier(shared.prepare.tiles_full).init(1);
        cutlass::arch::fence_barrier_init();
        shared.flag = nullptr;
        shared.next = atomicAdd(taken, 1u);
    }
    Half::sync();
#pragma unroll 1
    for (;;) {
        const unsigned record = shared.next;
        if (record >= args.records()) break;
        const unsigned in_window = quotient(record, args.prepare.call.heads),
                       head = record - in_window * args.prepare.call.heads;
        const i64 at = static_cast<i64>(head) * args.prepare.per_head + in_window;
        const Half threads{shared, taken, record, last};
        KdaChunk chunk;
        if (find_kda_chunk(args.prepare.call, static_cast<int>(in_window), static_cast<int>(head), chunk)) {
            KdaPreparer<kConfig.preparer(), Half>{shared.prepare, args.prepare, threads}.run(chunk, args.prepare.records[at],
                                                                                             args.prepare.flags[at]);
            continue;
        }
        // Where packed sequences overlap, owners may wait for it all the same.
        Half::sync();
        threads.store_next(threads.take_next());
        if (Half::index() == kWarpgroup) threads.set_flags(args.prepare.flags[at], 0);
        Half::sync();
    }
    if (Half::index() == kWarpgroup) Half{shared, taken, 0, 0}.announce();
    Half::sync();
    if (Half::index() == 0) barrier(shared.prepare.tiles_full).invalidate();
}

}  // namespace gdn_cuda::gdn
