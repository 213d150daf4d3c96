// Which slot of a state pool a sequence starts from. csrc/operators/state_slots.hpp has the host's checks.
#pragma once

#include <gdn_cuda/kernels/common/numeric.cuh>

namespace gdn_cuda {

enum class Place { run, skip, poison };

// `Args` has slots (sequences,) or (sequences, slot_steps) with strides slots_sequence and slots_token, accepted (sequences,),
// null_slot and slot_count.

// Index in the sequence's row of slots: the step whose state the sequence starts from.
template <class Args>
__device__ __forceinline__ int step_of(const Args& args, i64 accepted) {
    return static_cast<int>(min(max(accepted, i64{1}), static_cast<i64>(args.slot_steps))) - 1;
}
template <class Args>
__device__ __forceinline__ int starting_step(const Args& args, int sequence) {
    return args.accepted.data == nullptr ? 0 : step_of(args, load_index(args.accepted, sequence));
}
// Whether a sequence with this slot is computed.
template <class Args>
__device__ __forceinline__ Place place_of(const Args& args, i64 slot) {
    if (slot < 0 || slot == args.null_slot) return Place::skip;
    return slot < args.slot_count ? Place::run : Place::poison;
}
// The slot a sequence starts from, and whether the sequence is computed.
template <class Args>
__device__ __forceinline__ Place starting_slot(const Args& args, int sequence, i64& slot, int& step) {
    step = starting_step(args, sequence);
    slot = sequence;
    if (args.slots.data == nullptr) return Place::run;
    slot = load_index(args.slots, sequence * args.slots_sequence + step * args.slots_token);
    return place_of(args, slot);
}

// An index whose load is in flight, so that other loads can be issued before its value is used.
struct IndexInFlight {
    int low, high;

    __device__ __forceinline__ void load(const Tagged& from, i64 at) {
        const bool is_wide = from.type == DType::i64;
        const int* words = static_cast<const int*>(from.data) + (at << is_wide);
        low = words[0], high = words[is_wide];
    }
    __device__ __forceinline__ i64 index(const Tagged& from) const {
        return from.type == DType::i64 ? static_cast<i64>(high) << 32 | static_cast<unsigned>(low) : low;
    }
};
// starting_slot in three steps, so that a kernel can issue other loads between them.
struct SlotInFlight {
    int sequence, step = 0;
    IndexInFlight accepted, slot;

    template <class Args>
    __device__ __forceinline__ void load_accepted(const Args& args, int sequence_index) {
        sequence = sequence_index;
        if (args.accepted.data != nullptr) accepted.load(args.accepted, sequence);
    }
    template <class Args>
    __device__ __forceinline__ void load_slot(const Args& args) {
        if (args.accepted.data != nullptr) step = step_of(args, accepted.index(args.accepted));
        if (args.slots.data != nullptr) slot.load(args.slots, sequence * args.slots_sequence + step * args.slots_token);
    }
    template <class Args>
    __device__ __forceinline__ void load(const Args& args, int sequence_index) {
        load_accepted(args, sequence_index);
        load_slot(args);
    }
    template <class Args>
    __device__ __forceinline__ Place place(const Args& args, i64& found) const {
        found = sequence;
        if (args.slots.data == nullptr) return Place::run;
        found = slot.index(args.slots);
        return place_of(args, found);
    }
};

}  // namespace gdn_cuda
