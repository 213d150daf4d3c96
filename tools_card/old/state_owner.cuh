// A warpgroup that owns 64 rows of the state and keeps them in registers from chunk to chunk.
//
// Functions of kernels/chunked take it by reference where they are called. None may store the reference: the compiler then
// keeps the state in local memory.
#pragma once

#include <gdn_cuda/kernels/chunked/products.cuh>
#include <gdn_cuda/kernels/chunked/tokens.cuh>

namespace gdn_cuda::gdn {

// PlanType: the block's shared memory.
template <ChunkedConfig kBlockConfig, class PlanType = ChunkedPlan<kBlockConfig>>
struct StateOwner : Lane {
    static constexpr ChunkedConfig kConfig = kBlockConfig;
    static constexpr DType kIo = kConfig.io;
    static constexpr int kStateSteps = kConfig.head_k / 16;
    using Plan = PlanType;

    Plan& shared;
    const ChunkedArgs& args;
    const ChunkedWork& work;

    float state[kConfig.head_k / 2];
    unsigned rounded_state[kConfig.is_wide() ? 1 : kStateSteps][4];  // a wide state is rounded for each product

    __device__ __forceinline__ StateOwner(Plan& shared, const ChunkedArgs& args, const ChunkedWork& work)
        : shared(shared), args(args), work(work) {
        find_lane();
    }

    __device__ __forceinline__ int index() const {  // among the value warpgroups
        return kConfig.value_groups == 1 ? 0 : group - kConfig.first_value_group();
    }
    __device__ __forceinline__ bool is_pass(ChunkedPass pass) const {
        return kConfig.chained ? work.pass == pass : pass == ChunkedPass::outputs;
    }
    // This warp has read the stage, or what the mbarrier is about.
    __device__ __forceinline__ void release(int stage) const { release(shared.stage_empty[stage]); }
    __device__ __forceinline__ void release(unsigned long long& empty) const {
        __syncwarp();
        if (lane == 0) barrier(empty).arrive();
    }
    // The thread's first row of the state, and the state's extent (hopper/fragment.cuh).
    __device__ __forceinline__ int my_row() const { return work.first_row + index() * kValueRows + 16 * warp + g; }
    __device__ __forceinline__ int rows() const { return work.rows; }
    __device__ __forceinline__ int columns() const { return args.call.dk; }

    __device__ __forceinline__ void round_state() {
        if constexpr (!kConfig.is_wide()) round_to_operand<kIo>(rounded_state, state);
    }
};

}  // namespace gdn_cuda::gdn
