// States in slots of a pool: where a sequence starts. The host checks are csrc/operators/state_slots.hpp.
#pragma once

#include <gdn_cuda/kernels/common/numeric.cuh>

namespace gdn_cuda {

enum class Place { run, skip, poison };

// The slot a sequence starts from, and whether it runs. `Args` has slots (sequences,) or (sequences, slot_steps) with strides
// slots_sequence and slots_token, accepted (sequences,), null_slot and slot_count.
template <class Args>
__device__ __forceinline__ Place starting_slot(const Args& args, int sequence, i64& slot, int& step) {
    step = 0;
    if (args.accepted.data != nullptr) {
        const i64 accepted = load_index(args.accepted, sequence);
        step = static_cast<int>(min(max(accepted, i64{1}), static_cast<i64>(args.slot_steps))) - 1;
    }
    slot = sequence;
    if (args.slots.data == nullptr) return Place::run;
    slot = load_index(args.slots, sequence * args.slots_sequence + step * args.slots_token);
    if (slot < 0 || slot == args.null_slot) return Place::skip;
    return slot < args.slot_count ? Place::run : Place::poison;
}

}  // namespace gdn_cuda
