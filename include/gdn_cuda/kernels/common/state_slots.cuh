// States in slots of a pool: where a sequence starts. The host checks are csrc/operators/state_slots.hpp.
#pragma once

#include <gdn_cuda/kernels/common/numeric.cuh>

namespace gdn_cuda {

enum class Place { run, skip, poison };

// `Args` has slots (sequences,) or (sequences, slot_steps) with strides slots_sequence and slots_token, accepted (sequences,),
// null_slot and slot_count.

// The step whose state a sequence starts from.
template <class Args>
__device__ __forceinline__ int starting_step(const Args& args, int sequence) {
    if (args.accepted.data == nullptr) return 0;
    const i64 accepted = load_index(args.accepted, sequence);
    return static_cast<int>(min(max(accepted, i64{1}), static_cast<i64>(args.slot_steps))) - 1;
}
// Whether a sequence with this slot runs.
template <class Args>
__device__ __forceinline__ Place place_of(const Args& args, i64 slot) {
    if (slot < 0 || slot == args.null_slot) return Place::skip;
    return slot < args.slot_count ? Place::run : Place::poison;
}
// The slot a sequence starts from, and whether it runs.
template <class Args>
__device__ __forceinline__ Place starting_slot(const Args& args, int sequence, i64& slot, int& step) {
    step = starting_step(args, sequence);
    slot = sequence;
    if (args.slots.data == nullptr) return Place::run;
    slot = load_index(args.slots, sequence * args.slots_sequence + step * args.slots_token);
    return place_of(args, slot);
}

// The same while the slot is on its way from memory, so that others can be loaded meanwhile.
struct SlotInFlight {
    int sequence, low, high;

    template <class Args>
    __device__ __forceinline__ void load(const Args& args, int of_sequence) {
        sequence = low = high = of_sequence;
        if (args.slots.data == nullptr) return;
        const i64 at = sequence * args.slots_sequence + starting_step(args, sequence) * args.slots_token;
        const bool is_wide = args.slots.type == DType::i64;
        const int* words = static_cast<const int*>(args.slots.data) + (at << is_wide);
        low = words[0], high = words[is_wide];
    }
    template <class Args>
    __device__ __forceinline__ Place place(const Args& args, i64& slot) const {
        slot = args.slots.type == DType::i64 ? static_cast<i64>(high) << 32 | static_cast<unsigned>(low) : low;
        if (args.slots.data != nullptr) return place_of(args, slot);
        slot = sequence;
        return Place::run;
    }
};

}  // namespace gdn_cuda
