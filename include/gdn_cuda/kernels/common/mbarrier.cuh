// Barriers in shared memory (sm_90): arrivals of threads and bytes of asynchronous copies, waited for by phase. And named ones.
#pragma once

#include <gdn_cuda/kernels/common/shared.cuh>

namespace gdn_cuda {

struct Barrier {
    unsigned long long state;

    __device__ __forceinline__ void init(int arrivals) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&state)), "r"(arrivals));
    }
    // Before it is initialised anew; nobody is at it.
    __device__ __forceinline__ void invalidate() {
        asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(shared_address(&state)) : "memory");
    }
    __device__ __forceinline__ void arrive() {
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&state)) : "memory");
    }
    // One arrival, and `bytes` of copies to come.
    __device__ __forceinline__ void expect(int bytes) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&state)), "r"(bytes)
                     : "memory");
    }
    __device__ __forceinline__ bool passed(unsigned parity) const {
        unsigned done;
        asm volatile(
            "{\n"
            ".reg .pred done;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
            "selp.u32 %0, 1, 0, done;\n"
            "}"
            : "=r"(done)
            : "r"(shared_address(&state)), "r"(parity)
            : "memory");
        return done != 0;
    }
    __device__ __forceinline__ void wait(unsigned parity) const {
        while (!passed(parity)) {
        }
    }
};

// Barriers initialised by ordinary stores, for the copy engine to see.
__device__ __forceinline__ void publish_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Ordinary stores to shared memory, for the copy engine and the tensor cores to see after the next barrier.
__device__ __forceinline__ void publish_shared() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// What other blocks stored to global memory and this thread has come to know of, for the copy engine to see.
__device__ __forceinline__ void publish_global() {
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

// Named barriers: `threads` of the block, a multiple of 32, meet at `name`.
__device__ __forceinline__ void meet(int name, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
// A named barrier that returns whether `found` holds for any of its threads.
__device__ __forceinline__ bool any_of_barrier(int name, int threads, bool found) {
    unsigned any;
    asm volatile(
        "{\n"
        ".reg .pred mine, any;\n"
        "setp.ne.u32 mine, %3, 0;\n"
        "bar.red.or.pred any, %1, %2, mine;\n"
        "selp.u32 %0, 1, 0, any;\n"
        "}"
        : "=r"(any)
        : "r"(name), "r"(threads), "r"(static_cast<unsigned>(found))
        : "memory");
    return any != 0;
}

}  // namespace gdn_cuda
