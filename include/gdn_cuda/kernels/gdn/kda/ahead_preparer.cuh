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
    static constexpr bool kTakesMany = true;

    unsigned in_block;

    __device__ __forceinline__ unsigned half() const { return in_block / KdaPrepareConfig::threads(); }
    __device__ __forceinline__ unsigned index() const { return in_block % KdaPrepareConfig::threads(); }
    __device__ __forceinline__ bool takes() const { return index() == 0; }
    __device__ __forceinline__ bool copies() const { return index() == kWarpgroup; }
    // By constant numbers: a register for them would be one too many.
    __device__ __forceinline__ void sync() const {
        if (half() == 0)
            NamedBarrier::sync(KdaPrepareConfig::threads(), 0);
        else
            NamedBarrier::sync(KdaPrepareConfig::threads(), 1);
    }
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

// As span_of, whose loads are predicated PTX: ptxas would keep their registers from record to record.
__device__ __forceinline__ Span span_by_plain_loads(const Tagged& cu_seqlens, int sequence, int tokens) {
    if (cu_seqlens.data == nullptr) return {0, tokens};
    const auto offset = [&](int i) {
        return cu_seqlens.type == DType::i64 ? static_cast<const i64*>(cu_seqlens.data)[i]
                                             : i64{static_cast<const int*>(cu_seqlens.data)[i]};
    };
    const i64 last = tokens, start = min(max(offset(sequence), i64{0}), last),
              end = min(max(offset(sequence + 1), start), last);
    return {start, static_cast<int>(end - start)};
}

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
        if (find_kda_chunk(call, static_cast<int>(in_window), static_cast<int>(head), chunk, span_by_plain_loads)) {
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
