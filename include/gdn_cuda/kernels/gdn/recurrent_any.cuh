// gdn/recurrent_any: the recurrence of Gated Delta Net, token by token, for what other kernels do not take.
//
//     S <- exp(g) S        v' = beta (v - S k)        S <- S + v' k^T        o = scale S q
//
// Tensors of any float dtype and strides, key dimensions up to 256, states of any strides, such as [K, V] ones, and more heads
// of queries than of keys and values. As in gdn/recurrent, lanes keep rows of S in registers from the first token to the last.
// A block's rows of S go through shared memory, so that neighbouring threads access neighbouring numbers whichever dimension of
// the state is contiguous.
//
// The order of sums differs from that of the other kernels of the recurrence, and so do last bits.
//
// Bound: with few tokens, the state's bytes, read and written once; with many, the latency of one token after another.
#pragma once

#include <gdn_cuda/kernels/gdn/recurrent/any_plan.cuh>
#include <gdn_cuda/kernels/gdn/recurrent/tokens.cuh>

namespace gdn_cuda::gdn {

template <RecurrentAnyConfig kConfig>
struct RecurrentAnyBlock {
    static constexpr RecurrentAnyConfig::Group kLayout = kConfig.layout();
    static constexpr int kLanes = kLayout.lanes, kRows = kConfig.rows_per_block(), kThreads = kConfig.threads();
    using Shared = RecurrentAnyShared<kConfig>;

    // A lane's numbers of a query or key in shared memory.
    struct Slice {
        const float* first;
        __device__ __forceinline__ float operator[](int i) const { return first[i * kLanes]; }
    };

    const RecurrentAnyArgs& all;
    const GdnCall& args;
    Shared& shared;
    int head, first_row, rows, lane, row;  // lane: of the row's group

    __device__ __forceinline__ RecurrentAnyBlock(const RecurrentAnyArgs& all, Shared& shared)
        : all(all),
          args(all.call),
          shared(shared),
          head(blockIdx.y),
          first_row(blockIdx.x * kRows),
          rows(min(kRows, args.dv - first_row)),
          lane(threadIdx.x % kLanes),
          row(threadIdx.x / kLanes) {}

    // Calls visit(row, column) for every number of the block's states, neighbouring threads along the contiguous dimension.
    template <class Visit>
    __device__ __forceinline__ void for_each_number(const RecurrentStates& states, Visit&& visit) const {
        if (states.column == 1) {
#pragma unroll 1
            for (int r = threadIdx.x / 32; r < rows; r += kThreads / 32)
#pragma unroll 1
                for (int c = threadIdx.x % 32; c < args.dk; c += 32) visit(r, c);
        } else if (const int r = threadIdx.x % kRows; r < rows) {
#pragma unroll 1
            for (int c = threadIdx.x / kRows; c < args.dk; c += kThreads / kRows) visit(r, c);
        }
    }
    __device__ __forceinline__ i64 offset_of(const RecurrentStates& states, int r, int c) const {
        return head * states.head + (first_row + r) * states.row + c * states.column;
    }
    __device__ __forceinline__ void load(const RecurrentStates& states, i64 at, float (&s)[kLayout.per_lane]) {
        for_each_number(states, [&](int r, int c) {
            shared.state[r][c] = load_number({states.data, states.type}, at + offset_of(states, r, c));
        });
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kLayout.per_lane; ++i) {
            const int column = lane + i * kLanes;
            s[i] = row < rows && column < args.dk ? shared.state[row][column] : 0.f;
        }
        __syncthreads();
    }
    __device__ __forceinline__ void store(const RecurrentStates& states, i64 at, const float (&s)[kLayout.per_lane]) {
#pragma unroll
        for (int i = 0; i < kLayout.per_lane; ++i) shared.state[row][lane + i * kLanes] = s[i];
        __syncthreads();
        for_each_number(states, [&](int r, int c) {
            store_number({states.data, states.type}, at + offset_of(states, r, c), shared.state[r][c]);
        });
        __syncthreads();
    }

    __device__ __forceinline__ i64 at(const Rows& of, int sequence, i64 token, int heads_each) const {
        return sequence * of.batch + token * of.token +
               static_cast<unsigned>(head) / static_cast<unsigned>(heads_each) * of.head;
    }
    // Fills the block's rows of the outputs of tokens [first, last).
    __device__ __forceinline__ void fill(int sequence, i64 first, i64 last, float x) const {
        const int r = threadIdx.x % kRows;
        if (r >= rows || first_row + r >= args.outputs) return;
#pragma unroll 1
        for (i64 token = first + threadIdx.x / kRows; token < last; token += kThreads / kRows)
            store_number(args.output.data, all.io, at(args.output, sequence, token, 1) + (first_row + r) * all.output_d, x);
    }
    // Tokens [first, first + count), and their scalars.
    __device__ __forceinline__ void load_tokens(int sequence, i64 first, int count) {
#pragma unroll 1
        for (int i = threadIdx.x; i < count * kConfig.head_k; i += kThreads) {
            const int t = i / kConfig.head_k, c = i % kConfig.head_k;
            const bool inside = c < args.dk;
            const i64 query = at(args.query, sequence, first + t, all.heads_per_query) + c * all.query_d;
            const i64 key = at(args.key, sequence, first + t, args.heads_per_key) + c * all.key_d;
            shared.query[t][c] = inside ? load_number({args.query.data, all.io}, query) : 0.f;
            shared.key[t][c] = inside ? load_number({args.key.data, all.io}, key) : 0.f;
        }
#pragma unroll 1
        for (int i = threadIdx.x; i < count * kRows; i += kThreads) {
            const int t = i / kRows, r = i % kRows;
            const i64 value = at(args.value, sequence, first + t, all.heads_per_value) + (first_row + r) * all.value_d;
            shared.value[t][r] = r < rows && first_row + r < args.values ? load_number({args.value.data, all.io}, value) : 0.f;
        }
        __syncthreads();
        const int t = min(row, count - 1);  // a group of lanes has a token; all lanes of a warp take part in its sums
        const auto number_at = [&](const Scalars& of) { return sequence * of.batch + (first + t) * of.token + head * of.head; };
        RawGates gates;
        gates.load(args, number_at(args.gate), number_at(args.beta), head, args.forms);
        TokenScalars scalars;
        gates.finish(args, args.forms, scalars);
        set_products<kLayout>(scalars, Slice{shared.query[t] + lane}, Slice{shared.key[t] + lane}, args.scale, args.qk_norm);
        shared.scalars[t] = scalars;
        __syncthreads();
    }
    __device__ __forceinline__ void store_outputs(int sequence, i64 first, int count) const {
#pragma unroll 1
        for (int i = threadIdx.x; i < count * kRows; i += kThreads) {
            const int t = i / kRows, r = i % kRows;
            const i64 output = at(args.output, sequence, first + t, 1) + (first_row + r) * all.output_d;
            if (r < rows && first_row + r < args.outputs) store_number(args.output.data, all.io, output, shared.value[t][r]);
        }
    }
    __device__ __forceinline__ void advance_token(int t, float (&s)[kLayout.per_lane]) {
        const TokenScalars scalars = shared.scalars[t];
        if (resets(scalars))
#pragma unroll
            for (float& x : s) x = 0.f;
        const float out =
            advance<kLayout>(s, Slice{shared.query[t] + lane}, Slice{shared.key[t] + lane}, scalars, shared.value[t][row]);
        __syncwarp();
        if (lane == 0) shared.value[t][row] = out;
    }

    __device__ __forceinline__ void load_initial(int sequence, i64 slot, int step, float (&s)[kLayout.per_lane]) {
        if (has_initial_state(args, sequence))
            return load(args.initial, slot * args.initial.slot + step * args.initial.step, s);
#pragma unroll
        for (float& x : s) x = 0.f;
    }

    __device__ __forceinline__ void run(int sequence) {
        i64 slot;
        int first_step;
        const Place place = starting_slot(args, sequence, slot, first_step);
        const Span span = span_of(args.cu_seqlens, sequence, args.tokens);
        if (args.cu_seqlens.data != nullptr && sequence == args.sequences - 1)  // tokens of no sequence
            fill(sequence, span.start + span.length, args.tokens, 0.f);
        if (place != Place::run)
            return fill(sequence, span.start, span.start + span.length, place == Place::skip ? 0.f : quiet_nan());

        float s[kLayout.per_lane] = {};
        load_initial(sequence, slot, first_step, s);
        Tree tree;
        const i64 packed_before = packed_steps_before(args, sequence);
#pragma unroll 1
        for (int first = 0; first < span.length; first += Shared::kTokens) {
            const int count = min(Shared::kTokens, span.length - first);
            load_tokens(sequence, span.start + first, count);
#pragma unroll 1
            for (int t = 0; t < count; ++t) {
                i64 parent = 0;
                const Tree::Start start = tree.next(args, sequence, first + t, parent);
                if (start == Tree::nowhere) {
                    if (lane == 0) shared.value[t][row] = quiet_nan();
                    continue;
                }
                if (start == Tree::from_slot) load_initial(sequence, slot, first_step, s);
                if (start == Tree::from_step) load(args.steps, parent, s);
                advance_token(t, s);
                if (const i64 step = step_offset(args, sequence, packed_before, first + t); step >= 0)
                    store(args.steps, step, s);
            }
            __syncthreads();
            store_outputs(sequence, span.start + first, count);
            __syncthreads();
        }
        if (keeps_its_slot(args, sequence, span.length)) return;
        if (const i64 last_slot = last_slot_of(args, sequence, slot); last_slot >= 0)
            store(args.last, last_slot * args.last.slot, s);
    }
};

template <RecurrentAnyConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.blocks_at_least())
    recurrent_any(const __grid_constant__ RecurrentAnyArgs args) {
    __shared__ RecurrentAnyShared<kConfig> shared;
    RecurrentAnyBlock<kConfig> block(args, shared);
#pragma unroll 1
    for (int sequence = blockIdx.z; sequence < args.call.sequences; sequence += gridDim.z) block.run(sequence);
}

}  // namespace gdn_cuda::gdn
