// gdn/backward_prepare: what both chains of the backward need of a chunk and does not depend on the state: T and its rounding
// residual, P, factors of tokens; and the scalars for gdn/backward_gradients. As the preparing blocks of gdn/prefill_ahead:
// helper roles of gdn/prefill form them, a warp stores them. A block takes every few chunks of a sequence and head.
//
// Bound: on an H200 2 us a chunk and multiprocessor, at half of memory's throughput and 72 % of L2's (ncu); latency of the
// inverse is suspected.
#pragma once

#include <gdn_cuda/kernels/chunked/ahead/preparer.cuh>
#include <gdn_cuda/kernels/gdn/backward_chain/args.cuh>

namespace gdn_cuda::gdn {

// By one warp.
template <ChunkedConfig kConfig>
struct PreparedStore {
    ChunkedPlan<kConfig>& shared;
    const BackwardHandover& to;
    const i64 first;  // in the handover
    const int stride;

    __device__ __forceinline__ void run() const {
        const int lane = threadIdx.x % 32;
#pragma unroll 1
        for (int chunk = 0; chunk < shared.work.tokens.chunks; ++chunk) {
            const PipelineStage<kConfig.stages> current(chunk);
            barrier(shared.matrices_full[current.index]).wait(current.parity);
            if (lane == 0) store(chunk, current.index);
            __syncwarp();
            if (lane < kConfig.value_groups * 4) barrier(shared.stage_empty[current.index]).arrive();
        }
        if (lane == 0) wait_for_bulk_stores();
    }

  private:
    __device__ __forceinline__ void store(int chunk, int stage) const {
        constexpr int kScalars = 4 * kChunk * static_cast<int>(sizeof(float));  // factors begin as ChunkScalars do
        static_assert(sizeof(NormsIf<true>) == kScalars / 2 && sizeof(ChunkScalars) == kScalars + 16);
        const int slot = chunk % kConfig.slots();
        const i64 index = first + chunk * stride;
        static_assert(sizeof(CachedChunk<kConfig>) == sizeof(PreparedChunk));
        auto& cached = static_cast<CachedChunk<kConfig>*>(to.prepared)[index];
        ChunkScalars& scalars = to.scalars[index];
        const auto& factors = shared.factors[stage];
        cached.scalars.decay = shared.decay[stage];
        cached.scalars.cancels = shared.cancels[slot];
        scalars.cancels = columns_that_cancel(shared.cancels[slot]) != 0;
        cutlass::arch::fence_view_async_shared();
        start_store<kConfig>(cached, shared.matrices[slot], factors, true);
        cute::SM90_BULK_COPY_S2G::copy(&factors, &scalars, kScalars);
        cute::tma_store_arrive();
        cute::tma_store_wait<0>();
    }
};

template <ChunkedConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 1) backward_prepare(const __grid_constant__ BackwardPrepareArgs args) {
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& shared = *reinterpret_cast<ChunkedPlan<kConfig>*>(memory);
    static_assert(sizeof(shared) <= 227 * 1024 && kConfig.trains);
    const int pair = static_cast<int>(blockIdx.z) * args.call.heads + static_cast<int>(blockIdx.y);
    const int first = static_cast<int>(blockIdx.x);
    run_roles<kConfig, true>(PreparerSchedule<kConfig, BackwardPrepareArgs>{shared, args, args, pair, first},
                             [&](const auto& schedule) {
                                 if (threadIdx.x % kWarpgroup >= 32) return;
                                 const ChunkedWork& work = schedule.work();
                                 const i64 at = prepared_index(args, args.to, work.head, work.sequence,
                                                               work.tokens.start - work.tokens.before, work.tokens.before);
                                 PreparedStore<kConfig>{shared, args.to, at, args.preparers}.run();
                             });
}

}  // namespace gdn_cuda::gdn
