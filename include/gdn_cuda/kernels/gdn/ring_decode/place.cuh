// gdn/ring_decode: where a block works.
#pragma once

#include <gdn_cuda/kernels/gdn/ring_decode/plan.cuh>
#include <gdn_cuda/kernels/recurrence/ring.cuh>

namespace gdn_cuda::gdn {

// Some rows of one head of one sequence.
template <RingDecodeConfig kConfig>
struct RingPlace : RingSequence<RingPlace<kConfig>, RingDecodeArgs, Storage<kConfig.io>, kConfig.tokens> {
    using Io = Storage<kConfig.io>;
    using Update = Storage<kConfig.updates()>;

    int head, key_head, first_row, rows;

    __device__ __forceinline__ explicit RingPlace(const RingDecodeArgs& args) {
        key_head = static_cast<int>(blockIdx.y);
        int value_head = static_cast<int>(blockIdx.x), row_block = 0;
        if (args.row_blocks > 1) {
            value_head = static_cast<int>(blockIdx.x / static_cast<unsigned>(args.row_blocks));
            row_block = static_cast<int>(blockIdx.x) - value_head * args.row_blocks;
        }
        head = key_head * args.heads_per_key + value_head;
        first_row = row_block * args.block_rows;
        rows = min(args.block_rows, args.dv - first_row);
        this->load_sequence(args);
    }
    __device__ __forceinline__ Io* ring_key(const RingDecodeArgs& args, int entry, int head_index) const {
        return this->template ring_at<Io>(args.keys, entry, head_index);
    }
    __device__ __forceinline__ Update* ring_updates(const RingDecodeArgs& args, int entry) const {
        return this->template ring_at<Update>(args.updates, entry, head) + first_row;
    }
    __device__ __forceinline__ float* ring_decay(const RingDecodeArgs& args, int entry, int head_index) const {
        return this->template ring_at<float>(args.decays, entry, head_index);
    }
    __device__ __forceinline__ void fill(const RingDecodeArgs& args, i64 first, i64 last, float x) const {
        Io* const outputs = static_cast<Io*>(args.output.data) + this->sequence * args.output.batch + head * args.output.head;
        if (static_cast<int>(threadIdx.x) < rows)
#pragma unroll 1
            for (i64 token = first; token < last; ++token)
                outputs[token * args.output.token + first_row + threadIdx.x] = from_float<Io>(x);
    }
};

}  // namespace gdn_cuda::gdn
