// The value role of a block: a warpgroup that owns 64 rows of the state. What a chunk does to them, and in which order, is its
// rule's: Rule::run(owner, first chunk) takes the chunks of a pass, waits for each at `matrices_full`, and releases its stage.
#pragma once

#include <gdn_cuda/kernels/chunked/cache.cuh>
#include <gdn_cuda/kernels/chunked/pass.cuh>
#include <gdn_cuda/kernels/chunked/persistent.cuh>

namespace gdn_cuda::gdn {

// One thread caches chunks, in a pass that stores no outputs.
template <class Owner>
__device__ __forceinline__ bool caches_chunks(const Owner& own) {
    constexpr ChunkedConfig kConfig = Owner::kConfig;
    return kConfig.chained && own.work.cache.stores &&
           opaque(static_cast<int>(threadIdx.x)) == kConfig.first_value_group() * kWarpgroup;
}
template <class Owner>
__device__ __forceinline__ void start_caching(const Owner& own, int chunk) {
    if (caches_chunks(own)) start_cached_store<Owner::kConfig>(own.shared, chunk);
}
// Before the chunk is released.
template <class Owner>
__device__ __forceinline__ void finish_caching(const Owner& own) {
    if (caches_chunks(own)) cute::tma_store_wait<0>();
}

// For a warpgroup whose rows are all past the end, or a pass that only caches: it only arrives at the barriers, and leaves the
// SM to the others.
template <class Owner>
__device__ __forceinline__ void skip_chunks(Owner& own, int first) {
    signal_initial_state_read(own);
    if (applies_summaries(own)) skip_summaries(own);
#pragma unroll 1
    for (int chunk = first; chunk < own.work.tokens.chunks; ++chunk) {
        const PipelineStage<Owner::kConfig.stages> current(chunk);
        barrier(own.shared.matrices_full[current.index]).wait(current.parity);
        start_caching(own, chunk);
        finish_caching(own);
        own.release(current.index);
    }
    signal_summary_written(own);
}

template <ChunkedConfig kConfig, class Rule>
struct ValueRole {
    ChunkedPlan<kConfig>& shared;
    const ChunkedArgs& args;
    const WorkOf<kConfig>& work;

    __device__ __forceinline__ ValueRole(ChunkedPlan<kConfig>& shared, const ChunkedArgs& args, const WorkOf<kConfig>& work)
        : shared(shared), args(args), work(work) {}

    __device__ __forceinline__ void run() const {
        StateOwner<kConfig> own(shared, args, work);
        const int first = first_chunk<kConfig>(work);
        const bool past_rows = kConfig.value_groups > 1 && work.first_row + own.index() * kValueRows >= work.rows;
        if (past_rows || own.is_pass(ChunkedPass::cache)) {
            skip_chunks(own, first);
            if (caches_chunks(own)) wait_for_bulk_stores();
            return;
        }
        begin_pass(own);
        Rule::run(own, first);
        end_pass(own);
        if (!kConfig.persistent && own.thread == 0) cute::tma_store_wait<0>();
        if (caches_chunks(own)) wait_for_bulk_stores();
    }
};

}  // namespace gdn_cuda::gdn
