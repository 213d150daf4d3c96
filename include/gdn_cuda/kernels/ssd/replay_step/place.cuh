// ssd/replay_step: where a block works.
#pragma once

#include <gdn_cuda/kernels/recurrence/ring.cuh>
#include <gdn_cuda/kernels/ssd/replay_step/plan.cuh>

namespace gdn_cuda::ssd {

// Some rows of one group of heads, of one sequence. A row is a channel of a head.
template <ReplayStepConfig kConfig>
struct ReplayPlace : RingSequence<ReplayPlace<kConfig>, ReplayStepArgs, Storage<kConfig.io>, kConfig.tokens> {
    using Io = Storage<kConfig.io>;

    int group;
    int first_row, rows;  // first_row: within the group
    int first_head;       // of the block, among all heads
    int first_channel;    // of the first row, in the first head

    __device__ __forceinline__ explicit ReplayPlace(const ReplayStepArgs& args) {
        group = static_cast<int>(blockIdx.y);
        first_row = static_cast<int>(blockIdx.x) * args.block_rows;
        rows = min(args.block_rows, args.group_heads * args.channels - first_row);
        const int head = static_cast<int>(static_cast<unsigned>(first_row) / static_cast<unsigned>(args.channels));
        first_head = group * args.group_heads + head;
        first_channel = first_row - head * args.channels;
        this->load_sequence(args);
    }
    // The row of weights for the state that is written.
    __device__ __forceinline__ int fold_row(const ReplayStepArgs& args) const {
        return args.verifies() || this->length == 0 ? kConfig.tokens : this->length - 1;
    }

    // The head of a row of the block, counted from the block's first, and the channel there. By comparisons, as a division
    // takes more instructions.
    struct Channel {
        int head, channel;
    };
    __device__ __forceinline__ Channel channel_of(const ReplayStepArgs& args, int row) const {
        const int at = first_channel + row;
        int head = 0;
#pragma unroll
        for (int next_head = 1; next_head < ReplayStepConfig::kHeads; ++next_head) head += at >= next_head * args.channels;
        return {head, at - head * args.channels};
    }
    __device__ __forceinline__ int heads(const ReplayStepArgs& args) const { return channel_of(args, rows - 1).head + 1; }

    __device__ __forceinline__ Io* ring_x(const ReplayStepArgs& args, int entry, int head) const {
        return this->template ring_at<Io>(args.x_ring, entry, head);
    }
    __device__ __forceinline__ Io* ring_B(const ReplayStepArgs& args, int entry, int ring_group) const {
        return this->template ring_at<Io>(args.B_ring, entry, ring_group);
    }
    __device__ __forceinline__ float* ring_delta(const ReplayStepArgs& args, int entry, int head) const {
        return this->template ring_at<float>(args.delta_ring, entry, head);
    }
    __device__ __forceinline__ void fill(const ReplayStepArgs& args, i64 first, i64 last, float x) const {
        const int row = static_cast<int>(threadIdx.x);
        if (row >= rows) return;
        const Channel at = channel_of(args, row);
        Io* const outputs = static_cast<Io*>(args.out.data) + this->sequence * args.out.batch +
                            (first_head + at.head) * args.out.head + at.channel;
#pragma unroll 1
        for (i64 token = first; token < last; ++token) outputs[token * args.out.token] = from_float<Io>(x);
    }
};

}  // namespace gdn_cuda::ssd
