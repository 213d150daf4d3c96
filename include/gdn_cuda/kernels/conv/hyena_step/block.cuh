// Shared by the step kernels of Hyena: the channels and sequences of a block, and where a sequence's state is.
#pragma once

#include <gdn_cuda/kernels/common/state_slots.cuh>
#include <gdn_cuda/kernels/conv/hyena_step/plan.cuh>

namespace gdn_cuda::conv {

// A block has some contiguous channels of some sequences, which it processes one after the other.
struct HyenaStepBlock {
    i64 first_channel;
    int first, end;  // sequences [first, end)

    __device__ __forceinline__ HyenaStepBlock(const HyenaStepArgs& args, int channels) {
        const auto channel_blocks = static_cast<unsigned>(ceil_div(args.channels, channels));
        const unsigned group = blockIdx.x / channel_blocks;
        first_channel = i64{blockIdx.x - group * channel_blocks} * channels;
        first = static_cast<int>(group) * args.block_sequences;
        end = static_cast<int>(min(i64{first} + args.block_sequences, args.sequences));
    }
};

// The slot of a sequence, and whether it runs.
__device__ __forceinline__ Place slot_of(const HyenaStepArgs& args, int sequence, i64& slot) {
    slot = sequence;
    if (args.slots.data == nullptr) return Place::run;
    slot = load_index(args.slots, sequence);
    return place_of(args, slot);
}

}  // namespace gdn_cuda::conv
