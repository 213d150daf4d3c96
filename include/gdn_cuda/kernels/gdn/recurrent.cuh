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
#include <gdn_cuda/kernels/common/vector.cuh>
#include <gdn_cuda/kernels/gdn/recurrent_plan.cuh>

namespace gdn_cuda::gdn {

constexpr float kNormEpsilon = 1e-6f;

// What all rows of a head share at one token.
struct TokenGates {
    float decay, beta;
};

__device__ __forceinline__ TokenGates load_gates(const RecurrentArgs& args, int sequence, i64 token, int head) {
    const float gate =
        load_number(args.gate.values, sequence * args.gate.batch + token * args.gate.token + head * args.gate.head);
    const float beta =
        load_number(args.beta.values, sequence * args.beta.batch + token * args.beta.token + head * args.beta.head);
    if (args.A_log.data == nullptr) return {expf(gate), beta};
    const float rate = expf(load_number(args.A_log, head));
    return {expf(-rate * softplus(gate + load_number(args.dt_bias, head))), sigmoid(beta)};
}

// The part of a row of dk elements that one lane holds: vectors `lane`, `lane + kLanes`, ...
template <RecurrentConfig kConfig, DType kType>
struct RowSlice {
    static constexpr RecurrentLayout kLayout{kConfig};
    static constexpr int kVectors = kLayout.per_lane / kLayout.vector;
    using T = Storage<kType>;
    Vector<T, kLayout.vector, kConfig.aligned> vectors[kVectors];

    template <bool kStreaming = false>
    __device__ __forceinline__ void load(const T* row, int lane, int dk) {
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            const int at = (i * kLayout.lanes + lane) * kLayout.vector;
            if (!kConfig.exact_k && at >= dk) {
                vectors[i].clear();
            } else if constexpr (kStreaming) {
                vectors[i].load_streaming(row + at);
            } else {
                vectors[i].load(row + at);
            }
        }
    }
    __device__ __forceinline__ float operator[](int i) const { return vectors[i / kLayout.vector][i % kLayout.vector]; }
};

template <RecurrentConfig kConfig>
struct StateRow {
    static constexpr RecurrentLayout kLayout{kConfig};
    using Slice = RowSlice<kConfig, kConfig.state>;
    using T = typename Slice::T;
    float s[kLayout.per_lane];

    __device__ __forceinline__ void set(const Slice& slice) {
#pragma unroll
        for (int i = 0; i < kLayout.per_lane; ++i) s[i] = slice[i];
    }
    __device__ __forceinline__ void store(T* row, int lane, int dk) const {
#pragma unroll
        for (int i = 0; i < kLayout.per_lane / kLayout.vector; ++i) {
            const int at = (i * kLayout.lanes + lane) * kLayout.vector;
            if (!kConfig.exact_k && at >= dk) continue;
            Vector<T, kLayout.vector, kConfig.aligned> vector;
#pragma unroll
            for (int j = 0; j < kLayout.vector; ++j) vector.set(j, s[i * kLayout.vector + j]);
            vector.store(row + at);
        }
    }
};

// The inputs of one token, loaded ahead of their use.
template <RecurrentConfig kConfig>
struct Token {
    using Slice = RowSlice<kConfig, kConfig.io>;
    Slice query, key;
    float value[kConfig.rows_per_thread];
    TokenGates gates;

    __device__ __forceinline__ void load(const RecurrentArgs& args, int sequence, i64 token, int head, int first_row,
                                         int row_step, int lane) {
        using T = typename Slice::T;
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
        gates = load_gates(args, sequence, token, head);
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
    for (int n = 0; n < sequence; ++n) before += span_of(args.cu_seqlens, n, args.tokens).length / args.step_interval;
    return before;
}

// One token for one row: returns the row's output, updates the row.
template <RecurrentConfig kConfig>
__device__ __forceinline__ float advance(StateRow<kConfig>& row, const Token<kConfig>& token, float value, float key_scale,
                                         float query_scale, float query_key) {
    constexpr RecurrentLayout kLayout{kConfig};
    float state_key = 0.f, state_query = 0.f;
#pragma unroll
    for (int i = 0; i < kLayout.per_lane; ++i) {
        state_key = fmaf(row.s[i], token.key[i], state_key);
        state_query = fmaf(row.s[i], token.query[i], state_query);
    }
    state_key = group_sum<kLayout.lanes>(state_key) * key_scale;
    state_query = group_sum<kLayout.lanes>(state_query) * query_scale;
    const float correction = token.gates.beta * (value - token.gates.decay * state_key);
    const float along_key = correction * key_scale;
#pragma unroll
    for (int i = 0; i < kLayout.per_lane; ++i) row.s[i] = fmaf(along_key, token.key[i], token.gates.decay * row.s[i]);
    return fmaf(correction, query_key, token.gates.decay * state_query);
}

// A block's rows of the outputs of tokens [first, last), all `x`.
template <RecurrentConfig kConfig>
__device__ __forceinline__ void fill_outputs(const RecurrentArgs& args, int sequence, i64 first, i64 last, int head, float x) {
    using Io = Storage<kConfig.io>;
    constexpr int kRows = RecurrentLayout{kConfig}.rows_per_block;
    const int first_row = blockIdx.x * kRows;
    const int rows = min(kRows, args.dv - first_row);
    Io* outputs = static_cast<Io*>(args.output.data) + sequence * args.output.batch + head * args.output.head + first_row;
    for (i64 i = threadIdx.x; i < (last - first) * rows; i += blockDim.x)
        outputs[(first + i / rows) * args.output.token + i % rows] = from_float<Io>(x);
}

template <RecurrentConfig kConfig>
__global__ void __launch_bounds__(kConfig.warps * 32) recurrent(const __grid_constant__ RecurrentArgs args) {
    constexpr RecurrentLayout kLayout{kConfig};
    constexpr int kRows = kConfig.rows_per_thread;
    constexpr int kGroups = 32 / kLayout.lanes;
    using State = Storage<kConfig.state>;
    using Io = Storage<kConfig.io>;

    const int lane = threadIdx.x % kLayout.lanes;
    const int row_step = kGroups * kConfig.warps;
    const int first_row = blockIdx.x * kLayout.rows_per_block + threadIdx.x / kLayout.lanes;
    const int head = blockIdx.y;
    const i64 head_offset = static_cast<i64>(head) * args.dv * args.dk;
    const auto row_offset = [&](int r) { return head_offset + static_cast<i64>(first_row + r * row_step) * args.dk; };
    const auto in_range = [&](int r) { return first_row + r * row_step < args.dv; };

    for (int sequence = blockIdx.z; sequence < args.sequences; sequence += gridDim.z) {
        i64 slot;
        int first_step;
        const Place place = starting_slot(args, sequence, slot, first_step);
        const Span span = span_of(args.cu_seqlens, sequence, args.tokens);

        typename StateRow<kConfig>::Slice loaded[kRows];
        const bool from_memory = place == Place::run && args.initial.data != nullptr;
        const State* initial =
            static_cast<const State*>(args.initial.data) + slot * args.initial.slot + first_step * args.initial.step;
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            if (from_memory && in_range(r)) {
                loaded[r].template load<true>(initial + row_offset(r), lane, args.dk);
            } else {
                for (auto& vector : loaded[r].vectors) vector.clear();
            }
        }

        Io* outputs = static_cast<Io*>(args.output.data) + sequence * args.output.batch + span.start * args.output.token +
                      head * args.output.head;
        if (args.cu_seqlens.data != nullptr && sequence == args.sequences - 1)  // tokens that belong to no sequence
            fill_outputs<kConfig>(args, sequence, span.start + span.length, args.tokens, head, 0.f);
        if (place != Place::run) {
            fill_outputs<kConfig>(args, sequence, span.start, span.start + span.length, head, place == Place::skip ? 0.f : NAN);
            continue;
        }

        Token<kConfig> token;
        if (span.length > 0) token.load(args, sequence, span.start, head, first_row, row_step, lane);
        StateRow<kConfig> rows[kRows];
#pragma unroll
        for (int r = 0; r < kRows; ++r) rows[r].set(loaded[r]);
        const i64 packed_before = packed_steps_before(args, sequence);

        for (int t = 0; t < span.length; ++t) {
            const auto load_next = [&](Token<kConfig>& into) {
                if (t + 1 < span.length) into.load(args, sequence, span.start + t + 1, head, first_row, row_step, lane);
            };
            Token<kConfig> next;
            if constexpr (kConfig.prefetch) load_next(next);

            float key_square = 0.f, query_square = 0.f, query_key = 0.f;
#pragma unroll
            for (int i = 0; i < kLayout.per_lane; ++i) {
                key_square = fmaf(token.key[i], token.key[i], key_square);
                query_square = fmaf(token.query[i], token.query[i], query_square);
                query_key = fmaf(token.query[i], token.key[i], query_key);
            }
            query_key = group_sum<kLayout.lanes>(query_key);
            float key_scale = 1.f, query_scale = args.scale;
            if (args.qk_norm) {
                key_scale = rsqrtf(group_sum<kLayout.lanes>(key_square) + kNormEpsilon);
                query_scale *= rsqrtf(group_sum<kLayout.lanes>(query_square) + kNormEpsilon);
            }
            query_key *= key_scale * query_scale;

            State* steps = step_state<State>(args, sequence, packed_before, t);
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                const float out = advance(rows[r], token, token.value[r], key_scale, query_scale, query_key);
                if (!in_range(r)) continue;
                if (lane == 0) outputs[t * args.output.token + first_row + r * row_step] = from_float<Io>(out);
                if (steps != nullptr) rows[r].store(steps + row_offset(r), lane, args.dk);
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
                if (in_range(r)) rows[r].store(last + row_offset(r), lane, args.dk);
        }
    }
}

}  // namespace gdn_cuda::gdn
