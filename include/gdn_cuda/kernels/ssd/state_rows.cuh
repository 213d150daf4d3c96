// The rows of a row tile, whichever products update them: four warps own 64 channels of a head's state in registers, read and
// store it, and hand it on from segment to segment.
#pragma once

#include <gdn_cuda/kernels/common/counters.cuh>
#include <gdn_cuda/kernels/common/pairs.cuh>
#include <gdn_cuda/kernels/ssd/work.cuh>

namespace gdn_cuda::ssd {

// `TileLane` has the thread's place in the row tile: thread, warp, g and t, tile() in the block, and tile_sync().
template <int kStates, class TileLane>
struct StateRows : TileLane {
    using TileLane::g, TileLane::t, TileLane::thread, TileLane::warp;

    const SsdArgs& args;
    const SsdWork& work;
    // 64 channels x N, in parts that a wgmma takes. A thread has rows g and g + 8 of its warp's 16, columns 8 n + 2 t and + 1,
    // in the order [n][row][column].
    static constexpr int kPartColumns = kStates < 128 ? kStates : 128, kParts = kStates / kPartColumns;
    float state[kParts][kPartColumns / 2];

    __device__ __forceinline__ StateRows(const SsdArgs& args, const SsdWork& work) : args(args), work(work) {}

    __device__ __forceinline__ int head() const { return work.row_tiles[this->tile()].head; }
    __device__ __forceinline__ int first_row() const { return work.row_tiles[this->tile()].first_row; }
    // The thread's first channel; the other is eight further on.
    __device__ __forceinline__ int my_row() const { return first_row() + 16 * warp + g; }

    // Calls visit(pair of elements, their offset in `states`) for those that exist of a slot's.
    template <class Visit>
    __device__ __forceinline__ void for_each_state_pair(const SsdStates& states, i64 slot, const Visit& visit) {
        const int rows = args.channels, columns = args.states;  // columns: a multiple of 8
        const i64 first = slot * states.slot + head() * states.head + 2 * t;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = my_row() + 8 * half;
            if (row >= rows) break;
            const i64 of_row = first + static_cast<i64>(row) * columns;
#pragma unroll
            for (int part = 0; part < kParts; ++part)
#pragma unroll
                for (int n = 0; n < kPartColumns / 8; ++n)
                    if (const int column = part * kPartColumns + 8 * n; column < columns)
                        visit(state[part][4 * n + 2 * half], state[part][4 * n + 2 * half + 1], of_row + column);
        }
    }
    __device__ __forceinline__ void clear_state() {
#pragma unroll
        for (auto& part : state)
#pragma unroll
            for (float& x : part) x = 0.f;
    }
    __device__ __forceinline__ void decay_state(float decay) {
#pragma unroll
        for (auto& part : state)
#pragma unroll
            for (float& x : part) x *= decay;
    }
    __device__ __forceinline__ float D_of(int row) const {
        if (args.D.values.data == nullptr || row >= args.channels) return 0.f;
        return load_float(args.D.values, head() * args.D.head + row * args.D.channel);
    }

    // ---- States of segments

    __device__ __forceinline__ const SsdPass& pass() const { return args.passes[work.pass]; }
    __device__ __forceinline__ i64 scan() const { return static_cast<i64>(work.pass) * args.sequences + work.sequence; }
    __device__ __forceinline__ i64 segment_index(int segment) const {
        const i64 tiles = static_cast<i64>(args.heads) * args.tiles_of_head;
        return (scan() * args.segments.count + segment) * tiles + work.first_tile + this->tile();
    }
    __device__ __forceinline__ float* segment_state(int segment) const {
        return args.segments.states + segment_index(segment) * kTileRows * kStates + thread;
    }
    // Hands on the state after the segment of the first steps, from zeros, and its decay.
    __device__ __forceinline__ void store_segment(float log_decay) {
        float* const to = segment_state(work.summed);
#pragma unroll
        for (int part = 0; part < kParts; ++part)
#pragma unroll
            for (int i = 0; i < kPartColumns / 2; ++i) to[(part * (kPartColumns / 2) + i) * kTileThreads] = state[part][i];
        if (thread == 0) args.segments.decays[segment_index(work.summed)] = exp2_fast(log_decay);
        this->tile_sync();
        if (thread == 0) red_release(args.segments.done + segment_index(work.summed));
    }
    // The state before this segment: what the segments before add, from the nearest on while their decays leave anything of it.
    // Returns their decay.
    __device__ __forceinline__ float load_state() {
        const float limit = exp2f(gdn::kNegligibleLog2);
        float decay = 1.f;
        clear_state();
#pragma unroll 1
        for (int segment = work.segment - 1; segment >= 0; --segment) {
            if (thread == 0) wait_for_count(args.segments.done + segment_index(segment), 1);
            this->tile_sync();
            const float* const from = segment_state(segment);
#pragma unroll
            for (int part = 0; part < kParts; ++part)
#pragma unroll
                for (int i = 0; i < kPartColumns / 2; ++i)
                    state[part][i] = fmaf(decay, from[(part * (kPartColumns / 2) + i) * kTileThreads], state[part][i]);
            decay *= args.segments.decays[segment_index(segment)];
            if (decay < limit) return decay;  // NaN goes on
        }
        if (work.initial_slot >= 0)
            for_each_state_pair(pass().initial, work.initial_slot, [&](float& a, float& b, i64 at) {
                const float2 pair = load_pair(pass().initial, at);
                a = fmaf(decay, pair.x, a), b = fmaf(decay, pair.y, b);
            });
        return decay;
    }
    // A pool's state may be replaced only after all segments have read it.
    __device__ __forceinline__ unsigned* readers() const {
        return args.segments.read + scan() * args.heads * args.tiles_of_head + work.first_tile + this->tile();
    }
    __device__ __forceinline__ void signal_initial_state_read() const {
        if (work.is_last()) return;
        this->tile_sync();
        if (thread == 0) red_release(readers());
    }
    __device__ __forceinline__ void store_state() {
        if (!work.is_last() || work.last_slot < 0) return;
        if (work.segments > 1) {
            if (thread == 0) wait_for_count(readers(), work.segments - 1);
            this->tile_sync();
        }
        for_each_state_pair(pass().last, work.last_slot,
                            [&](float a, float b, i64 at) { store_pair(pass().last, at, {a, b}); });
    }
    // The state before a step's chunk, in x's dtype.
    template <DType kIo>
    __device__ __forceinline__ void store_chunk_state(int step) {
        const i64 head_elements = static_cast<i64>(args.channels) * args.states,
                  chunk = work.chunks_before + work.chunk_at(step);
        const SsdStates to{.data = pass().chunk_states, .type = kIo, .slot = args.heads * head_elements, .head = head_elements};
        for_each_state_pair(to, chunk, [&](float a, float b, i64 at) { store_pair(to, at, {a, b}); });
    }
    __device__ __forceinline__ static float2 load_pair(const SsdStates& from, i64 at) {
        if (from.type == DType::f32) return pair_at(static_cast<const float*>(from.data) + at);
        const unsigned pair = *reinterpret_cast<const unsigned*>(static_cast<const unsigned short*>(from.data) + at);
        return from.type == DType::bf16 ? unpack<DType::bf16>(pair) : unpack<DType::f16>(pair);
    }
    __device__ __forceinline__ static void store_pair(const SsdStates& to, i64 at, float2 x) {
        if (to.type == DType::f32)
            *reinterpret_cast<float2*>(static_cast<float*>(to.data) + at) = x;
        else
            *reinterpret_cast<unsigned*>(static_cast<unsigned short*>(to.data) + at) =
                to.type == DType::bf16 ? pack<DType::bf16>(x.x, x.y) : pack<DType::f16>(x.x, x.y);
    }
    // ---- Checkpoints

    __device__ __forceinline__ void store_row(const SsdStates& to, int row) {
        for_each_state_pair(to, row, [&](float a, float b, i64 at) { store_pair(to, at, {a, b}); });
    }
    // Of a step that may not exist.
    __device__ __forceinline__ void store_before(int step) {
        if (args.table.chunks == nullptr || step >= work.steps) return;
        const int row = chunk_of_table(args, work, work.chunk_at(step)).before;
        if (row >= 0) store_row(args.states_before, row);
    }
    // What is reported between a step and the next.
    __device__ __forceinline__ void store_reported(int step) {
        if (args.table.chunks == nullptr) [[likely]]
            return;
        const SsdChunk& chunk = chunk_of_table(args, work, work.chunk_at(step));
        const int first = chunk.row, end = first + chunk.rows;
#pragma unroll 1
        for (int row = first; row < end; ++row) store_row(args.checkpoints, row);
        store_before(step + 1);
    }

    // ---- Summaries

    // The last segment's state without outputs, and the decay from the sequence's first token on. `before`: load_state's.
    __device__ __forceinline__ void store_summary(float before, float log_decay) {
        const float decay = before * exp2_fast(log_decay);
        for_each_state_pair(pass().last, work.last_slot,
                            [&](float a, float b, i64 at) { store_pair(pass().last, at, {a, b}); });
        if (args.decay != nullptr && thread == 0 && first_row() == 0)
            args.decay[static_cast<i64>(work.sequence) * args.heads + head()] = decay;
    }
};

}  // namespace gdn_cuda::ssd
