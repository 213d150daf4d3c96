// gdn/recurrent: the recurrence of Gated Delta Net, token by token, with the state in registers.
//
//     S <- exp(g) S        v' = beta (v - S k)        S <- S + v' k^T        o = scale S q
//
// Rows of S (one value dimension each) never meet, so a group of lanes owns a row and keeps it from the first token to the
// last: S is read once and written once however many tokens there are. With S the state before the decay,
//
//     v' = beta (v - e^g S.k)        o = scale (e^g S.q + v' q.k)
//
// needs S.k, S.q and k.q in one round of shuffles, and the l2 norms of q and k multiply scalars instead of vectors.
// The slot index is the only load ahead of the state's; q, k, v and the gates arrive while the state is under way.
//
// Serves fused_decode (gates computed here, slots of a pool), recurrent_forward, and chunked_forward where no faster kernel
// applies.
//
// Bound: the state's bytes, read and written once; docs/benchmarks/decode.md has the share reached. Nothing is in shared
// memory.
#pragma once

#include <gdn_cuda/kernels/common/varlen.cuh>
#include <gdn_cuda/kernels/gdn/recurrent_plan.cuh>
#include <gdn_cuda/kernels/gdn/row.cuh>

namespace gdn_cuda::gdn {

template <RecurrentConfig kConfig, DType kType>
using RecurrentSlice = RowSlice<Storage<kType>, kConfig.layout(), kConfig.aligned, kConfig.exact_k>;

// The inputs of one token, loaded ahead of their use.
template <RecurrentConfig kConfig>
struct Token {
    RecurrentSlice<kConfig, kConfig.io> query, key;
    float value[kConfig.rows_per_thread];
    RawGates gates;

    __device__ __forceinline__ void load(const RecurrentArgs& args, int sequence, i64 token, int head, int first_row,
                                         int row_step, int lane) {
        using T = Storage<kConfig.io>;
        const int key_head = head / args.heads_per_key;
        const auto row_of = [&](const Rows& rows, int h) {
            return static_cast<const T*>(rows.data) + sequence * rows.batch + token * rows.token + h * rows.head;
        };
        query.load(row_of(args.query, key_head), lane, args.dk);
        key.load(row_of(args.key, key_head), lane, args.dk);
        const T* values = row_of(args.value, head);
#pragma unroll
        for (int r = 0; r < kConfig.rows_per_thread; ++r) {
            const int row = first_row + r * row_step;
            value[r] = row < args.dv ? to_float(values[row]) : 0.f;
        }
        const auto number_at = [&](const Scalars& of) { return sequence * of.batch + token * of.token + head * of.head; };
        gates.load(args, number_at(args.gate), number_at(args.beta), head, args.A_log.data != nullptr);
    }
};

enum class Place { run, skip, poison };

// The slot a sequence starts from, and whether it runs at all.
__device__ __forceinline__ Place starting_slot(const RecurrentArgs& args, int sequence, i64& slot, int& step) {
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

// The state after token `t` of a sequence goes here; nullptr: nowhere.
template <class T>
__device__ __forceinline__ T* step_state(const RecurrentArgs& args, int sequence, i64 packed_before, int t) {
    if (args.steps.data == nullptr || (t + 1) % args.step_interval != 0 || t >= args.step_limit) return nullptr;
    i64 slot = sequence;
    i64 step = t / args.step_interval;
    switch (args.step_index) {
        case RecurrentArgs::by_sequence:
            break;
        case RecurrentArgs::packed:
            slot = 0;
            step += packed_before;
            break;
        case RecurrentArgs::by_slot_of_token:
            slot = load_index(args.slots, sequence * args.slots_sequence + t * args.slots_token);
            if (slot < 0 || slot == args.null_slot || slot >= args.slot_count) return nullptr;
            step = 0;
            break;
        case RecurrentArgs::by_step_slot:
            slot = load_index(args.step_slots, sequence);
            if (slot < 0 || slot >= args.step_slot_count) return nullptr;
            break;
    }
    return static_cast<T*>(args.steps.data) + slot * args.steps.slot + step * args.steps.step;
}

// Step states written by the sequences packed before this one.
__device__ __forceinline__ i64 packed_steps_before(const RecurrentArgs& args, int sequence) {
    if (args.steps.data == nullptr || args.step_index != RecurrentArgs::packed) return 0;
    if (args.step_interval == 1) return span_of(args.cu_seqlens, sequence, args.tokens).start;
    i64 before = 0;
#pragma unroll 1
    for (int n = 0; n < sequence; ++n) before += span_of(args.cu_seqlens, n, args.tokens).length / args.step_interval;
    return before;
}

// A block's rows of the outputs of tokens [first, last), all `x`.
template <RecurrentConfig kConfig>
__device__ __forceinline__ void fill_outputs(const RecurrentArgs& args, int sequence, i64 first, i64 last, int head, float x) {
    using Io = Storage<kConfig.io>;
    constexpr int kRows = kConfig.rows_per_block();
    const int first_row = blockIdx.x * kRows;
    const int rows = min(kRows, args.dv - first_row);
    Io* outputs = static_cast<Io*>(args.output.data) + sequence * args.output.batch + head * args.output.head + first_row;
#pragma unroll 1
    for (i64 i = threadIdx.x; i < (last - first) * rows; i += blockDim.x)
        outputs[(first + i / rows) * args.output.token + i % rows] = from_float<Io>(x);
}

template <RecurrentConfig kConfig>
__global__ void __launch_bounds__(kConfig.warps * 32) recurrent(const __grid_constant__ RecurrentArgs args) {
    constexpr StateLayout kLayout = kConfig.layout();
    constexpr int kRows = kConfig.rows_per_thread;
    constexpr int kGroups = 32 / kLayout.lanes;
    using State = Storage<kConfig.state>;
    using StateSlice = RecurrentSlice<kConfig, kConfig.state>;
    using Io = Storage<kConfig.io>;

    const int lane = threadIdx.x % kLayout.lanes;
    const int row_step = kGroups * kConfig.warps;
    const int first_row = blockIdx.x * kConfig.rows_per_block() + threadIdx.x / kLayout.lanes;
    const int head = blockIdx.y;
    const i64 head_offset = static_cast<i64>(head) * args.dv * args.dk;
    const auto row_offset = [&](int r) { return head_offset + static_cast<i64>(first_row + r * row_step) * args.dk; };
    const auto in_range = [&](int r) { return first_row + r * row_step < args.dv; };

#pragma unroll 1
    for (int sequence = blockIdx.z; sequence < args.sequences; sequence += gridDim.z) {
        i64 slot;
        int first_step;
        const Place place = starting_slot(args, sequence, slot, first_step);
        const Span span = span_of(args.cu_seqlens, sequence, args.tokens);

        StateSlice loaded[kRows];
        const bool from_memory = place == Place::run && args.initial.data != nullptr;
        const State* initial =
            static_cast<const State*>(args.initial.data) + slot * args.initial.slot + first_step * args.initial.step;
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            from_memory && in_range(r) ? loaded[r].load_streaming(initial + row_offset(r), lane, args.dk) : loaded[r].clear();
        }

        Io* outputs = static_cast<Io*>(args.output.data) + sequence * args.output.batch + span.start * args.output.token +
                      head * args.output.head;
        if (args.cu_seqlens.data != nullptr && sequence == args.sequences - 1)  // tokens that belong to no sequence
            fill_outputs<kConfig>(args, sequence, span.start + span.length, args.tokens, head, 0.f);
        if (place != Place::run) {
            fill_outputs<kConfig>(args, sequence, span.start, span.start + span.length, head, place == Place::skip ? 0.f : quiet_nan());
            continue;
        }

        Token<kConfig> token;
        if (span.length > 0) token.load(args, sequence, span.start, head, first_row, row_step, lane);
        float rows[kRows][kLayout.per_lane];
#pragma unroll
        for (int r = 0; r < kRows; ++r)
#pragma unroll
            for (int i = 0; i < kLayout.per_lane; ++i) rows[r][i] = loaded[r][i];
        const i64 packed_before = packed_steps_before(args, sequence);

#pragma unroll 1
        for (int t = 0; t < span.length; ++t) {
            const auto load_next = [&](Token<kConfig>& into) {
                if (t + 1 < span.length) into.load(args, sequence, span.start + t + 1, head, first_row, row_step, lane);
            };
            Token<kConfig> next;
            if constexpr (kConfig.prefetch) load_next(next);

            TokenScalars scalars;
            token.gates.finish(args, args.A_log.data != nullptr, scalars);
            set_products<kLayout>(scalars, token.query, token.key, args.scale, args.qk_norm);

            State* steps = step_state<State>(args, sequence, packed_before, t);
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                const float out = advance<kLayout>(rows[r], token.query, token.key, scalars, token.value[r]);
                if (!in_range(r)) continue;
                if (lane == 0) outputs[t * args.output.token + first_row + r * row_step] = from_float<Io>(out);
                if (steps != nullptr) loaded[r].store(steps + row_offset(r), lane, args.dk, rows[r]);
            }
            if constexpr (kConfig.prefetch) {
                token = next;
            } else {
                load_next(token);
            }
        }

        if (args.last.data != nullptr) {
            State* last = static_cast<State*>(args.last.data) + slot * args.last.slot;
#pragma unroll
            for (int r = 0; r < kRows; ++r)
                if (in_range(r)) loaded[r].store(last + row_offset(r), lane, args.dk, rows[r]);
        }
    }
}

}  // namespace gdn_cuda::gdn
