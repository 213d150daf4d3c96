// What the steps of Hyena share: the channels and sequences of a block, and where a sequence's state is.
#pragma once

#include <gdn_cuda/kernels/common/state_slots.cuh>
#include <gdn_cuda/kernels/conv/hyena_step/plan.cuh>

namespace gdn_cuda::conv {

// A block has some neighbouring channels of some sequences, which it takes in turn.
struct HyenaStepBlock {
    i64 first_channel;
    int first, end;  // sequences

    __device__ __forceinline__ HyenaStepBlock(const HyenaStepArgs& args, int channels) {
        const auto of_channels = static_cast<unsigned>(ceil_div(args.channels, channels));
        const unsigned turn = blockIdx.x / of_channels;
        first_channel = i64{blockIdx.x - turn * of_channels} * channels;
        first = static_cast<int>(turn) * args.block_sequences;
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
