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

// Reads a state from memory.
template <SelectiveStepConfig kConfig>
__device__ __forceinline__ void read_state(const void* from, const StepLane<kConfig>& lane, i64 offset, int columns,
                                           typename StepTypes<kConfig>::Number (&state)[kConfig.elements()]) {
    using Types = StepTypes<kConfig>;
#pragma unroll
    for (int v = 0; v < kConfig.vectors; ++v) {
        typename Types::Vector vector;
        vector.clear();
        if (lane.column(v) < columns)
            vector.load_streaming(reinterpret_cast<const typename Types::Element*>(static_cast<const char*>(from) + offset +
                                                                                   lane.vector_offset(v)));
#pragma unroll
        for (int j = 0; j < kConfig.vector; ++j) state[v * kConfig.vector + j] = Types::at(vector, j);
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

// The row for the state after a token of a sequence; negative: not stored.
__device__ __forceinline__ i64 row_in(const SelectiveStepArgs::States& to, int sequence, int token) {
    const i64 row = load_index(to.rows, sequence * to.rows_sequence + token * to.rows_token);
    return row == to.null_row || row >= to.row_count || token >= to.limit ? -1 : row;
}

// Its address, if the state was read at `from`; nullptr: not stored.
template <SelectiveStepConfig kConfig>
__device__ __forceinline__ void* place_in(const SelectiveStepArgs::States& to, const void* from, int sequence, int token) {
    if (to.rows.data == nullptr) return const_cast<void*>(from);
    const i64 row = row_in(to, sequence, token);
    if (row < 0) return nullptr;
    return static_cast<char*>(to.states) + (row * to.row + token * to.token) * bytes_of(kConfig.state);
}

// The same, for the states that the call keeps.
template <SelectiveStepConfig kConfig>
__device__ __forceinline__ void* kept_state(const SelectiveStepArgs& args, const void* from, int sequence, int token) {
    if (from == nullptr || args.kept == SelectiveStepArgs::none) return nullptr;
    if (args.kept == SelectiveStepArgs::last && token + 1 < args.tokens) return nullptr;
    return place_in<kConfig>(args.to, from, sequence, token);
}

}  // namespace gdn_cuda::scan
