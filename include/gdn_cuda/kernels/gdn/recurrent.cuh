// gdn/recurrent: the recurrence of Gated Delta Net, token by token, with the state in registers.
//
//     S <- exp(g) S        v' = beta (v - S k)        S <- S + v' k^T        o = scale S q
//
// Rows of S (one value dimension each) never meet, so a group of lanes owns a few rows and keeps them from the first token to
// the last: S is read once and written once however many tokens there are (row.cuh). A block brings a batch of tokens into
// shared memory, where all its rows read them; the state arrives meanwhile.
//
// Serves recurrent_forward, speculative verify, packed and odd decode (gdn/decode has the plain step), and chunked_forward
// until a faster kernel applies.
//
// Bound: few tokens, the state's bytes, read and written once; many tokens, the latency of one token after another.
// docs/benchmarks/decode.md has the shares reached.
#pragma once

#include <gdn_cuda/kernels/common/varlen.cuh>
#include <gdn_cuda/kernels/gdn/recurrent_plan.cuh>
#include <gdn_cuda/kernels/gdn/row.cuh>

namespace gdn_cuda::gdn {

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

// Tokens [first, first + count) of a sequence into shared memory: keys and queries as they are (zero past dk), values of this
// block's rows, and the scalars, one group of lanes a token.
template <RecurrentConfig kConfig>
__device__ __forceinline__ void load_tokens(RecurrentSharedPlan<kConfig>& shared, const RecurrentArgs& args, int sequence,
                                            i64 first, int count, int head, int first_row) {
    using Io = Storage<kConfig.io>;
    constexpr StateLayout kLayout = kConfig.layout();
    constexpr int kPiece = 8, kPieces = kConfig.head_k / kPiece, kGroups = kConfig.threads() / kLayout.lanes;
    const int key_head = static_cast<unsigned>(head) / static_cast<unsigned>(args.heads_per_key);
    const auto row_of = [&](const Rows& rows, int t, int h) {
        return static_cast<const Io*>(rows.data) + sequence * rows.batch + (first + t) * rows.token + h * rows.head;
    };
#pragma unroll 1
    for (int i = threadIdx.x; i < count * kPieces; i += kConfig.threads()) {
        const int t = i / kPieces, at = i % kPieces * kPiece;
        Vector<Io, kPiece, kConfig.aligned> query, key;
        const bool inside = kConfig.exact_k || at < args.dk;
        inside ? query.load(row_of(args.query, t, key_head) + at) : query.clear();
        inside ? key.load(row_of(args.key, t, key_head) + at) : key.clear();
        query.store(reinterpret_cast<Io*>(shared.query[t].bytes) + at);
        key.store(reinterpret_cast<Io*>(shared.key[t].bytes) + at);
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < count * kConfig.rows_per_block(); i += kConfig.threads()) {
        const int t = i / kConfig.rows_per_block(), row = i % kConfig.rows_per_block();
        shared.value[t][row] = first_row + row < args.dv ? to_float(row_of(args.value, t, head)[first_row + row]) : 0.f;
    }
    __syncthreads();
#pragma unroll 1
    for (int batch = 0; batch < count; batch += kGroups) {  // every lane of a warp takes part in the sums
        const int t = min(batch + static_cast<int>(threadIdx.x) / kLayout.lanes, count - 1);
        RawGates gates;
        const auto number_at = [&](const Scalars& of) { return sequence * of.batch + (first + t) * of.token + head * of.head; };
        gates.load(args, number_at(args.gate), number_at(args.beta), head, args.A_log.data != nullptr);
        RowSlice<Io, kLayout, true, true> query, key;
        query.load(reinterpret_cast<const Io*>(shared.query[t].bytes), threadIdx.x % kLayout.lanes, kConfig.head_k);
        key.load(reinterpret_cast<const Io*>(shared.key[t].bytes), threadIdx.x % kLayout.lanes, kConfig.head_k);
        TokenScalars scalars;
        gates.finish(args, args.A_log.data != nullptr, scalars);
        set_products<kLayout>(scalars, query, key, args.scale, args.qk_norm);
        shared.scalars[t] = scalars;
    }
    __syncthreads();
}

template <RecurrentConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.blocks_at_least())
    recurrent(const __grid_constant__ RecurrentArgs args) {
    constexpr StateLayout kLayout = kConfig.layout();
    constexpr int kRows = kConfig.rows_per_thread;
    constexpr int kBatch = RecurrentSharedPlan<kConfig>::kTokens;
    using State = Storage<kConfig.state>;
    using Io = Storage<kConfig.io>;
    using StateSlice = RowSlice<State, kLayout, kConfig.aligned, kConfig.exact_k>;
    __shared__ RecurrentSharedPlan<kConfig> shared;

    const int lane = threadIdx.x % kLayout.lanes, group = threadIdx.x / kLayout.lanes;
    const int first_row = blockIdx.x * kConfig.rows_per_block();
    const int head = blockIdx.y;
    const auto row_of = [&](int r) { return group + r * (kConfig.threads() / kLayout.lanes); };  // inside the block
    const auto in_range = [&](int r) { return first_row + row_of(r) < args.dv; };
    const auto row_offset = [&](int r) { return (static_cast<i64>(head) * args.dv + first_row + row_of(r)) * args.dk; };

#pragma unroll 1
    for (int sequence = blockIdx.z; sequence < args.sequences; sequence += gridDim.z) {
        i64 slot;
        int first_step;
        const Place place = starting_slot(args, sequence, slot, first_step);
        const Span span = span_of(args.cu_seqlens, sequence, args.tokens);
        if (args.cu_seqlens.data != nullptr && sequence == args.sequences - 1)  // tokens that belong to no sequence
            fill_outputs<kConfig>(args, sequence, span.start + span.length, args.tokens, head, 0.f);
        if (place != Place::run) {
            fill_outputs<kConfig>(args, sequence, span.start, span.start + span.length, head,
                                  place == Place::skip ? 0.f : quiet_nan());
            continue;
        }

        StateSlice slices[kRows];
        const State* initial =
            static_cast<const State*>(args.initial.data) + slot * args.initial.slot + first_step * args.initial.step;
#pragma unroll
        for (int r = 0; r < kRows; ++r)
            args.initial.data != nullptr&& in_range(r) ? slices[r].load_streaming(initial + row_offset(r), lane, args.dk)
                                                       : slices[r].clear();
        const i64 packed_before = packed_steps_before(args, sequence);
        float rows[kRows][kLayout.per_lane];

#pragma unroll 1
        for (int first = 0; first == 0 || first < span.length; first += kBatch) {
            const int count = min(kBatch, span.length - first);
            if (count > 0) load_tokens<kConfig>(shared, args, sequence, span.start + first, count, head, first_row);
            if (first == 0)
#pragma unroll
                for (int r = 0; r < kRows; ++r)
#pragma unroll
                    for (int i = 0; i < kLayout.per_lane; ++i) rows[r][i] = slices[r][i];

#pragma unroll 1
            for (int t = 0; t < count; ++t) {
                RowSlice<Io, kLayout, true, true> query, key;
                query.load(reinterpret_cast<const Io*>(shared.query[t].bytes), lane, kConfig.head_k);
                key.load(reinterpret_cast<const Io*>(shared.key[t].bytes), lane, kConfig.head_k);
                const TokenScalars scalars = shared.scalars[t];
                State* steps = step_state<State>(args, sequence, packed_before, first + t);
#pragma unroll
                for (int r = 0; r < kRows; ++r) {
                    const float out = advance<kLayout>(rows[r], query, key, scalars, shared.value[t][row_of(r)]);
                    __syncwarp();
                    if (lane == 0) shared.value[t][row_of(r)] = out;
                    if (steps != nullptr && in_range(r)) slices[r].store(steps + row_offset(r), lane, args.dk, rows[r]);
                }
            }

            __syncthreads();
            Io* outputs = static_cast<Io*>(args.output.data) + sequence * args.output.batch +
                          (span.start + first) * args.output.token + head * args.output.head + first_row;
#pragma unroll 1
            for (int i = threadIdx.x; i < count * kConfig.rows_per_block(); i += kConfig.threads()) {
                const int t = i / kConfig.rows_per_block(), row = i % kConfig.rows_per_block();
                if (first_row + row < args.dv) outputs[t * args.output.token + row] = from_float<Io>(shared.value[t][row]);
            }
            __syncthreads();
        }

        if (args.last.data != nullptr) {
            State* last = static_cast<State*>(args.last.data) + slot * args.last.slot;
#pragma unroll
            for (int r = 0; r < kRows; ++r)
                if (in_range(r)) slices[r].store(last + row_offset(r), lane, args.dk, rows[r]);
        }
    }
}

}  // namespace gdn_cuda::gdn
