// gdn/move_states: copies states between dense buffers and pools or buffers of any dtype and strides. chunked_forward calls it
// for states that gdn/prefill cannot read or write in place.
//
// A block moves a tile of 32 x 32 elements of a state through shared memory: accesses to global memory are coalesced whether
// the source and the destination have contiguous rows or columns.
//
// Bound: memory, each element read and written once. The share of a copy's bandwidth was not measured.
#pragma once

#include <gdn_cuda/kernels/gdn/move_states_plan.cuh>
#include <gdn_cuda/kernels/gdn/recurrent/tokens.cuh>

namespace gdn_cuda::gdn {

// The slots that a state is read from and written to; from < 0: `otherwise` is written; to < 0: nothing is.
struct StateMove {
    i64 from = -1, to = -1;
    float otherwise = 0.f;
    int step = 0;  // in `from`
};

// To slot `to` from a sequence's initial state, or zeros.
__device__ __forceinline__ StateMove initial_move(const GdnCall& call, int sequence, i64 to, Place& place) {
    StateMove move{.to = to};
    i64 slot;
    place = starting_slot(call, sequence, slot, move.step);
    if (place == Place::run && has_initial_state(call, sequence)) move.from = slot;
    return move;
}

// The states before blocks of tokens are rows, ceil(length / block) for each sequence in order. This finds the sequence and the
// block of a row; block < 0: the row belongs to no sequence.
struct BlockOfRow {
    int sequence = 0;
    i64 block = -1, checkpoints_before = 0;

    __device__ __forceinline__ BlockOfRow(const MoveStatesArgs& args, i64 row) {
        const GdnCall& call = args.call;
        i64 rows_before = 0;
#pragma unroll 1
        for (; sequence < call.sequences; ++sequence) {
            const i64 length = span_of(call.cu_seqlens, sequence, call.tokens).length;
            const i64 rows = (length + args.block_tokens - 1) / args.block_tokens;
            if (row < rows_before + rows) {
                block = row - rows_before;
                return;
            }
            rows_before += rows;
            checkpoints_before += length / args.block_tokens;
        }
    }
};

template <StatesMove kMove>
__device__ __forceinline__ StateMove move_of(const MoveStatesArgs& args, i64 row) {
    const GdnCall& call = args.call;
    Place place;
    if constexpr (kMove == StatesMove::copy) {
        return {row, row};
    } else if constexpr (kMove == StatesMove::convert) {
        const i64 from = call.slots.data == nullptr ? row : load_index(call.slots, row * call.slots_sequence);
        i64 to = row;
        if (call.last_slots.data != nullptr) {
            to = load_index(call.last_slots, row);
            if (to == call.null_slot || to >= call.last_slot_count) to = -1;
        }
        const Place place = call.slots.data == nullptr ? Place::run : place_of(call, from);
        if (place == Place::run) return {from, to};
        return {-1, args.fills ? to : -1, place == Place::skip ? 0.f : quiet_nan()};
    } else if constexpr (kMove == StatesMove::at_offsets) {
        const i64 offset = load_index(args.offsets, row), slot = args.dense_slots[row];
        if (slot < 0 || offset <= 0) return {-1, row};
        if (slot >= call.sequences || offset > span_of(call.cu_seqlens, row, call.tokens).length) return {-1, row, quiet_nan()};
        return {row, row};
    } else if constexpr (kMove == StatesMove::identity) {
        return {-1, row};
    } else if constexpr (kMove == StatesMove::gather) {
        const StateMove move = initial_move(call, row, row, place);
        if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0)
            args.dense_slots[row] = place == Place::run ? row : place == Place::skip ? -1 : call.sequences;
        return move;
    } else if constexpr (kMove == StatesMove::scatter) {
        i64 slot;
        int step;
        if (starting_slot(call, row, slot, step) != Place::run) return {};
        if (keeps_its_slot(call, row, span_of(call.cu_seqlens, row, call.tokens).length)) return {};
        const i64 last = last_slot_of(call, row, slot);
        return {row, last};
    } else {
        const BlockOfRow found(args, row);
        const bool exists = found.block >= 0, is_first = found.block == 0;
        if constexpr (kMove == StatesMove::first_before) {
            if (exists && !is_first) return {};
            return exists ? initial_move(call, found.sequence, row, place) : StateMove{-1, row};  // other rows are zero
        } else {
            const i64 checkpoint = found.checkpoints_before + found.block - 1;  // past the last one if sequences overlap
            if (!exists || is_first || checkpoint >= args.checkpoints) return {};
            return {checkpoint, row};
        }
    }
}

template <MoveStatesConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads()) move_states(const __grid_constant__ MoveStatesArgs args) {
    constexpr int kTile = MoveStatesConfig::kTile, kRowsAtOnce = kConfig.threads() / kTile;
    __shared__ float tile[kTile][kTile + 1];
    constexpr auto kMove = kConfig.move;
    const GdnCall& call = args.call;
    const RecurrentStates from = move_from(kMove, args), to = move_to(kMove, args);
    const int column_tiles = (call.dk + kTile - 1) / kTile, head = blockIdx.y;
    const int first_row = static_cast<int>(blockIdx.x) / column_tiles * kTile;
    const int first_column = static_cast<int>(blockIdx.x) % column_tiles * kTile;
    // Calls visit(r, c, offset) for the tile's elements; adjacent threads go along the contiguous dimension.
    const auto for_each_element = [&](const RecurrentStates& states, auto&& visit) {
        const bool by_row = states.column == 1;
#pragma unroll
        for (int i = threadIdx.x / kTile; i < kTile; i += kRowsAtOnce) {
            const int j = threadIdx.x % kTile, r = by_row ? i : j, c = by_row ? j : i;
            if (first_row + r < call.dv && first_column + c < call.dk)
                visit(r, c, head * states.head + (first_row + r) * states.row + (first_column + c) * states.column);
        }
    };
#pragma unroll 1
    for (i64 row = blockIdx.z; row < args.rows; row += gridDim.z) {
        const StateMove move = move_of<kMove>(args, row);
        if (move.to < 0) continue;
        if constexpr (kConfig.from_codes && kConfig.to_codes) {
            for_each_element(to,
                             [&](int, int, i64 offset) { copy_code(to, move.to, from, move.from, offset, move.otherwise); });
            continue;
        }
        for_each_element(from, [&](int r, int c, i64 offset) {
            const bool is_one = kMove == StatesMove::identity && first_row + r - call.values == first_column + c;
            const i64 at = move.from * from.slot + move.step * from.step + offset;
            if (is_one || move.from < 0)
                tile[r][c] = is_one ? 1.f : move.otherwise;
            else if constexpr (kConfig.from_codes)
                tile[r][c] = load_code(from, move.from, move.step, offset);
            else
                tile[r][c] = load_float({from.data, from.type}, at);
        });
        __syncthreads();
        for_each_element(to, [&](int r, int c, i64 offset) {
            if constexpr (kConfig.to_codes)
                store_code(to, move.to, 0, offset, tile[r][c]);
            else
                store_float({to.data, to.type}, move.to * to.slot + offset, tile[r][c]);
        });
        __syncthreads();
    }
}

}  // namespace gdn_cuda::gdn
