// scan/selective_step: finds, loads and stores states.
#pragma once

#include <gdn_cuda/kernels/common/cp_async_ptx.cuh>
#include <gdn_cuda/kernels/common/state_slots.cuh>
#include <gdn_cuda/kernels/scan/selective_step/lane.cuh>

namespace gdn_cuda::scan {

// Finds the states of the block's sequences in the pool.
template <SelectiveStepConfig kConfig>
__device__ __forceinline__ void find_states(SelectiveStepSharedPlan<kConfig>& shared, const SelectiveStepArgs& args,
                                            int first_sequence, int sequences) {
    const int mine = static_cast<int>(threadIdx.x);
    if (mine >= sequences) return;
    i64 slot;
    int step;
    const Place place = starting_slot(args, first_sequence + mine, slot, step);
    shared.place[mine] = static_cast<int>(place);
    const char* pool = static_cast<const char*>(args.pool);
    shared.from[mine] = place == Place::run ? pool + slot * args.pool_slot * bytes_of(kConfig.state) : nullptr;
}

// Each thread's cp.async groups: for each round of items one with B and C, then for each of its items one with a later state.
// So this many newer groups may be in flight when a round needs its B and C, or an item its state.
inline constexpr int kGroupsInFlight = 4;

// One instruction; a comparison of pointers takes two.
__device__ __forceinline__ bool is_null(const void* pointer) {
    const i64 bits = reinterpret_cast<i64>(pointer);
    return (static_cast<unsigned>(bits) | static_cast<unsigned>(bits >> 32)) == 0;
}

// Starts to copy the state at `from`, if not null, to an item. For lanes with elements.
template <SelectiveStepConfig kConfig, class Item>
__device__ __forceinline__ void fetch_state(Item& item, const StepLane<kConfig>& lane, const void* from, i64 offset,
                                            int columns) {
    if constexpr (kConfig.aligned()) {
        if (is_null(from)) return;
        const char* lanes_part = static_cast<const char*>(from) + offset;
#pragma unroll
        for (int v = 0; v < kConfig.vectors; ++v)
            if (v == 0 || lane.column(v) < columns)
                cp_async_16(item.state[v][threadIdx.x].bytes, lanes_part + lane.vector_offset(v));
    }
}

// Loads an item's state from shared memory, where fetch_state copied it; unaligned states are read from the pool, at `from`.
template <SelectiveStepConfig kConfig, class Item>
__device__ __forceinline__ void load_state(const Item& item, const void* from, const StepLane<kConfig>& lane, i64 offset,
                                           int columns, typename StepTypes<kConfig>::Number (&state)[kConfig.elements()]) {
    using Types = StepTypes<kConfig>;
    using Element = typename Types::Element;
#pragma unroll
    for (int v = 0; v < kConfig.vectors; ++v) {
        typename Types::Vector vector;
        if constexpr (kConfig.aligned()) {
            vector.load(reinterpret_cast<const Element*>(item.state[v][threadIdx.x].bytes));
        } else {
            vector.clear();
            if (from != nullptr && lane.column(v) < columns)
                vector.load(reinterpret_cast<const Element*>(static_cast<const char*>(from) + offset + lane.vector_offset(v)));
        }
#pragma unroll
        for (int j = 0; j < kConfig.vector; ++j) state[v * kConfig.vector + j] = Types::at(vector, j);
    }
}

template <SelectiveStepConfig kConfig>
__device__ __forceinline__ void store_state(void* to, const StepLane<kConfig>& lane, i64 offset, int columns,
                                            const typename StepTypes<kConfig>::Number (&state)[kConfig.elements()]) {
    using Types = StepTypes<kConfig>;
    if (is_null(to)) return;
    char* row = static_cast<char*>(to) + offset;
#pragma unroll
    for (int v = 0; v < kConfig.vectors; ++v) {
        if (v > 0 && lane.column(v) >= columns) break;
        typename Types::Vector vector;
#pragma unroll
        for (int j = 0; j < kConfig.vector; ++j) Types::set(vector, j, state[v * kConfig.vector + j]);
        vector.store_global(reinterpret_cast<typename Types::Element*>(row + lane.vector_offset(v)));
    }
}

// Address for the state after an item; nullptr: not stored.
template <SelectiveStepConfig kConfig>
__device__ __forceinline__ void* kept_state(const SelectiveStepSharedPlan<kConfig>& shared, const SelectiveStepArgs& args,
                                            const StepItems& items, int item) {
    const void* const from = shared.from[items.in_block(item)];
    if (from == nullptr) return nullptr;
    const int sequence = items.sequence(item), token = items.token(item);
    i64 slot;
    switch (args.kept) {
        case SelectiveStepArgs::every_by_slot:
            slot = load_index(args.slots, sequence * args.slots_sequence + token * args.slots_token);
            if (slot < 0 || slot >= args.slot_count) return nullptr;
            return static_cast<char*>(args.pool) + slot * args.pool_slot * bytes_of(kConfig.state);
        case SelectiveStepArgs::every_by_step_slot:
            slot = load_index(args.step_slots, sequence);
            if (slot < 0 || slot >= args.step_slot_count || token >= args.step_limit) return nullptr;
            return static_cast<char*>(args.steps) +
                   (slot * args.steps_row + token * args.steps_token) * bytes_of(kConfig.state);
        case SelectiveStepArgs::last:
            break;
    }
    return token + 1 < args.tokens ? nullptr : const_cast<void*>(from);
}

}  // namespace gdn_cuda::scan
