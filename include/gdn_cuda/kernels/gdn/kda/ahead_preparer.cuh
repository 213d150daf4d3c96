// What prepares records in gdn/kda_ahead: half of a block, which takes one record after another, in the window's order, and
// announces each once it is in global memory.
#pragma once

#include <gdn_cuda/kernels/gdn/kda/ahead_plan.cuh>
#include <gdn_cuda/kernels/gdn/kda_prepare.cuh>
#include <gdn_cuda/kernels/hopper/counters.cuh>

namespace gdn_cuda::gdn {

// By the thread that has copied the record.
__device__ __forceinline__ void announce_kda_record(const KdaHalfPlan& shared) {
    if (shared.flag == nullptr) return;
    wait_for_bulk_stores();
    red_release(shared.flag, shared.flags);
}

struct KdaHalfThread {
    unsigned in_block;

    __device__ __forceinline__ unsigned half() const { return in_block / KdaPrepareConfig::threads(); }
    __device__ __forceinline__ unsigned index() const { return in_block % KdaPrepareConfig::threads(); }
    __device__ __forceinline__ bool takes() const { return index() == 0; }
    __device__ __forceinline__ bool copies() const { return index() == kWarpgroup; }
    __device__ __forceinline__ void sync() const { NamedBarrier::sync(KdaPrepareConfig::threads(), half()); }
};

// See KdaPreparingBlock.
struct KdaPreparingHalf {
    using Thread = KdaHalfThread;

    KdaHalfPlan& shared;
    unsigned* const taken;  // KdaAheadArgs::counters's
    const unsigned current;
    KdaRecord* const record;  // its
    unsigned* const flag;
    const Thread own;

    __device__ __forceinline__ Thread thread() const { return own; }
    __device__ __forceinline__ void sync() const { own.sync(); }
    __device__ __forceinline__ int other_barrier() const { return static_cast<int>(kKdaHalves + own.half()); }

    __device__ __forceinline__ static void start_barrier(Barrier&) {}
    // A record is taken early, so that nobody waits for the counter.
    __device__ __forceinline__ unsigned take_next() const {
        if (own.copies()) {
            announce_kda_record(shared);
            shared.record = record;
            shared.flag = flag;
        }
        return own.takes() && current < shared.last ? atomicAdd(taken, 1u) : ~0u;
    }
    __device__ __forceinline__ void store_next(unsigned next) const {
        if (own.takes()) shared.next = next;
    }
    // From shared memory, as registers are few.
    __device__ __forceinline__ KdaRecord& place_of(KdaRecord&) const {
        forget_memory();
        return *shared.record;
    }
    __device__ __forceinline__ void set_flags(unsigned&, unsigned flags) const { shared.flags = flags | kKdaReady; }
    __device__ __forceinline__ void finish(Barrier& tiles_full, bool reloads) const {
        if (own.copies() && !reloads) tiles_full.arrive();  // every record has two phases
        sync();
    }
};

// Takes records until `last` of them, or all, have been taken. By the whole block.
template <KdaAheadConfig kConfig>
__device__ __forceinline__ void prepare_kda_records(KdaHalfPlan* halves, const KdaAheadArgs& args, unsigned last) {
    const KdaHalfThread thread{threadIdx.x};
    if (thread.takes()) {
        KdaHalfPlan& shared = halves[thread.half()];
        barrier(shared.prepare.tiles_full).init(1);
        cutlass::arch::fence_barrier_init();
        shared.flag = nullptr;
        shared.next = atomicAdd(args.counters + 1, 1u);
        shared.last = last;
    }
    thread.sync();
#pragma unroll 1
    for (;;) {
        KdaHalfPlan& shared = halves[thread.half()];
        const unsigned record = shared.next;
        if (record >= args.records()) break;
        const KdaWindowCall& call = args.prepare.call;
        const unsigned in_window = quotient(record, call.heads), head = record - in_window * call.heads;
        const i64 at = static_cast<i64>(head) * args.prepare.per_head + in_window;
        const KdaPreparingHalf threads{shared, args.counters + 1, record, &args.prepare.records[at], &args.prepare.flags[at],
                                       thread};
        KdaChunk chunk;
        if (find_kda_chunk(call, static_cast<int>(in_window), static_cast<int>(head), chunk)) {
            KdaPreparer<kConfig.preparer(), KdaPreparingHalf>{shared.prepare, args.prepare, threads}.run(
                chunk, args.prepare.records[at], args.prepare.flags[at]);
            continue;
        }
        // Where packed sequences overlap, owners may wait for it all the same.
        thread.sync();
        threads.store_next(threads.take_next());
        if (thread.copies()) threads.set_flags(args.prepare.flags[at], 0);
        thread.sync();
    }
    KdaHalfPlan& shared = halves[thread.half()];
    if (thread.copies()) announce_kda_record(shared);
    thread.sync();
    if (thread.takes()) barrier(shared.prepare.tiles_full).invalidate();
}

}  // namespace gdn_cuda::gdn
