// gdn/recurrent_any: the recurrence of Gated Delta Net, token by token, for tensors that no other kernel of it supports.
//
//     S <- exp(g) S        v' = beta (v - S k)        S <- S + v' k^T        o = scale S q
//
// With channel_gates, g has a value for every channel of the key: S <- S diag(exp(g)) (Kimi Delta Attention).
//
// It supports any float dtype and strides, key dimensions up to 256, states of any strides (for example [K, V]), and more heads
// of queries than of keys and values. As in gdn/recurrent, lanes keep rows of S in registers from the first token to the last.
// A block's rows of S go through shared memory, so that accesses are coalesced whichever dimension of the state is contiguous.
//
// It sums in another order than the other kernels of the recurrence, so that last bits differ.
//
// Bound: with few tokens, memory, the state read and written once; with many, the latency of a token, as each needs the state
// after the one before it. The share of a copy's bandwidth was not measured.
#pragma once

#include <gdn_cuda/kernels/gdn/recurrent/any_plan.cuh>
#include <gdn_cuda/kernels/gdn/recurrent/tokens.cuh>
#include <gdn_cuda/kernels/recurrence/channel_decay.cuh>

namespace gdn_cuda::gdn {

template <RecurrentAnyConfig kConfig>
struct RecurrentAnyBlock {
    static constexpr RecurrentAnyConfig::Group kLayout = kConfig.layout();
    static constexpr int kLanes = kLayout.lanes, kRows = kConfig.rows_per_block(), kThreads = kConfig.threads();
    using Shared = RecurrentAnyShared<kConfig>;

    // A lane's elements of a query or key in shared memory.
    struct Slice {
        const float* first;
        __device__ __forceinline__ float operator[](int i) const { return first[i * kLanes]; }
    };

    const RecurrentAnyArgs& args;
    const GdnCall& call;
    Shared& shared;
    int head, first_row, rows, lane, row;  // lane: index in the group of lanes that holds `row`

    __device__ __forceinline__ RecurrentAnyBlock(const RecurrentAnyArgs& args, Shared& shared)
        : args(args),
          call(args.call),
          shared(shared),
          head(blockIdx.y),
          first_row(blockIdx.x * kRows),
          rows(min(kRows, call.dv - first_row)),
          lane(threadIdx.x % kLanes),
          row(threadIdx.x / kLanes) {}

    // Calls visit(row, column) for every element of the block's states; adjacent threads go along the contiguous dimension.
    template <class Visit>
    __device__ __forceinline__ void for_each_element(const RecurrentStates& states, Visit&& visit) const {
        if (states.column == 1) {
#pragma unroll 1
            for (int r = threadIdx.x / 32; r < rows; r += kThreads / 32)
#pragma unroll 1
                for (int c = threadIdx.x % 32; c < call.dk; c += 32) visit(r, c);
        } else if (const int r = threadIdx.x % kRows; r < rows) {
#pragma unroll 1
            for (int c = threadIdx.x / kRows; c < call.dk; c += kThreads / kRows) visit(r, c);
        }
    }
    __device__ __forceinline__ i64 offset_of(const RecurrentStates& states, int r, int c) const {
        return head * states.head + (first_row + r) * states.row + c * states.column;
    }
    __device__ __forceinline__ void load(const RecurrentStates& states, i64 slot, i64 step, float (&s)[kLayout.per_lane]) {
        const i64 at = slot * states.slot + step * states.step;
        for_each_element(states, [&](int r, int c) {
            const i64 offset = offset_of(states, r, c);
            if constexpr (kConfig.coded)
                shared.state[r][c] = load_code(states, slot, step, offset);
            else
                shared.state[r][c] = load_float({states.data, states.type}, at + offset);
        });
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kLayout.per_lane; ++i) {
            const int column = lane + i * kLanes;
            s[i] = row < rows && column < call.dk ? shared.state[row][column] : 0.f;
        }
        __syncthreads();
    }
    __device__ __forceinline__ void store(const RecurrentStates& states, i64 slot, i64 step,
                                          const float (&s)[kLayout.per_lane]) {
#pragma unroll
        for (int i = 0; i < kLayout.per_lane; ++i) shared.state[row][lane + i * kLanes] = s[i];
        __syncthreads();
        const i64 at = slot * states.slot + step * states.step;
        for_each_element(states, [&](int r, int c) {
            const i64 offset = offset_of(states, r, c);
            if constexpr (kConfig.coded)  // a warp visits a group, as dk is a multiple of it
                store_code(states, slot, step, offset, shared.state[r][c]);
            else
                store_float({states.data, states.type}, at + offset, shared.state[r][c]);
        });
        __syncthreads();
    }

    __device__ __forceinline__ i64 at(const Rows& tensor, int sequence, i64 token, int heads_each) const {
        return sequence * tensor.batch + token * tensor.token +
               static_cast<unsigned>(head) / static_cast<unsigned>(heads_each) * tensor.head;
    }
    // Fills the outputs of tokens [first, last) in the block's rows.
    __device__ __forceinline__ void fill(int sequence, i64 first, i64 last, float x) const {
        const int r = threadIdx.x % kRows;
        if (r >= rows || first_row + r >= call.outputs) return;
#pragma unroll 1
        for (i64 token = first + threadIdx.x / kRows; token < last; token += kThreads / kRows)
            store_float(call.output.data, args.io, at(call.output, sequence, token, 1) + (first_row + r) * args.output_d, x);
    }
    // Every channel's decay of tokens [first, first + count).
    template <ChannelGate kForm>
    __device__ __forceinline__ void load_decays(int sequence, i64 first, int count) {
        constexpr bool kRaw = kForm == ChannelGate::softplus || kForm == ChannelGate::bounded;
        const ChannelGates& channels = call.channels;
        const bool has_rate = kRaw && call.A_log.data != nullptr, has_bias = kRaw && call.dt_bias.data != nullptr;
        const ChannelDecay<kForm> decay(has_rate ? load_float(call.A_log, head) : 0.f, channels.lower_bound);
#pragma unroll 1
        for (int i = threadIdx.x; i < count * kConfig.head_k; i += kThreads) {
            const int t = i / kConfig.head_k, c = i % kConfig.head_k;
            if (c >= call.dk) {  // there a value that is not finite would leave NaN, as keys are 0
                shared.decay[t][c] = 0.f;
                continue;
            }
            const float bias = has_bias ? load_float(call.dt_bias, head * channels.bias_head + c) : 0.f;
            const i64 gate = scalar_offset(call.gate, sequence, first + t, head) + c * channels.channel;
            shared.decay[t][c] = decay(load_float(call.gate.values, gate) + bias);
        }
    }
    // Loads tokens [first, first + count) and computes their scalars.
    __device__ __forceinline__ void load_tokens(int sequence, i64 first, int count) {
#pragma unroll 1
        for (int i = threadIdx.x; i < count * kConfig.head_k; i += kThreads) {
            const int t = i / kConfig.head_k, c = i % kConfig.head_k;
            const bool inside = c < call.dk;
            const i64 query = at(call.query, sequence, first + t, args.heads_per_query) + c * args.query_d;
            const i64 key = at(call.key, sequence, first + t, call.heads_per_key) + c * args.key_d;
            shared.query[t][c] = inside ? load_float({call.query.data, args.io}, query) : 0.f;
            shared.key[t][c] = inside ? load_float({call.key.data, args.io}, key) : 0.f;
        }
#pragma unroll 1
        for (int i = threadIdx.x; i < count * kRows; i += kThreads) {
            const int t = i / kRows, r = i % kRows;
            const i64 value = at(call.value, sequence, first + t, args.heads_per_value) + (first_row + r) * args.value_d;
            shared.value[t][r] = r < rows && first_row + r < call.values ? load_float({call.value.data, args.io}, value) : 0.f;
        }
        if constexpr (kConfig.channel_gates)
            with_channel_gate(call.channels.form,
                              [&]<ChannelGate kForm>() { this->template load_decays<kForm>(sequence, first, count); });
        __syncthreads();
        const int t = min(row, count - 1);  // one token per group of lanes; all lanes of a warp: sums use shuffles
        RawGates gates;
        TokenScalars scalars;
        const i64 beta_at = scalar_offset(call.beta, sequence, first + t, head);
        if constexpr (kConfig.channel_gates) {
            gates.load_beta(call, beta_at);
            scalars.decay = 1.f;
            scalars.beta = gates.beta_of(call, call.forms);
        } else {
            gates.load(call, scalar_offset(call.gate, sequence, first + t, head), beta_at, head, call.forms);
            gates.finish(call, call.forms, scalars);
        }
        set_products<kLayout>(scalars, Slice{shared.query[t] + lane}, Slice{shared.key[t] + lane}, call.scale, call.qk_norm);
        shared.scalars[t] = scalars;
        __syncthreads();
    }
    __device__ __forceinline__ void store_outputs(int sequence, i64 first, int count) const {
#pragma unroll 1
        for (int i = threadIdx.x; i < count * kRows; i += kThreads) {
            const int t = i / kRows, r = i % kRows;
            const i64 output = at(call.output, sequence, first + t, 1) + (first_row + r) * args.output_d;
            if (r < rows && first_row + r < call.outputs) store_float(call.output.data, args.io, output, shared.value[t][r]);
        }
    }
    __device__ __forceinline__ void advance_token(int t, float (&s)[kLayout.per_lane]) {
        TokenScalars scalars = shared.scalars[t];
        if constexpr (kConfig.channel_gates) {
            scalars.decay = 1.f;  // a constant
#pragma unroll
            for (int i = 0; i < kLayout.per_lane; ++i) s[i] = decayed(s[i], shared.decay[t][lane + i * kLanes]);
        } else if (resets(scalars)) {
#pragma unroll
            for (float& x : s) x = 0.f;
        }
        const float out =
            advance<kLayout>(s, Slice{shared.query[t] + lane}, Slice{shared.key[t] + lane}, scalars, shared.value[t][row]);
        __syncwarp();
        if (lane == 0) shared.value[t][row] = out;
    }

    __device__ __forceinline__ void load_initial(int sequence, i64 slot, int step, float (&s)[kLayout.per_lane]) {
        if (has_initial_state(call, sequence)) return load(call.initial, slot, step, s);
#pragma unroll
        for (float& x : s) x = 0.f;
    }

    __device__ __forceinline__ void run(int sequence) {
        i64 slot;
        int first_step;
        const Place place = starting_slot(call, sequence, slot, first_step);
        const Span span = span_of(call.cu_seqlens, sequence, call.tokens);
        if (call.cu_seqlens.data != nullptr && sequence == call.sequences - 1)  // tokens after the last sequence
            fill(sequence, span.start + span.length, call.tokens, 0.f);
        if (place != Place::run)
            return fill(sequence, span.start, end_of_uncomputed(call, span, place), output_of_uncomputed(place));

        float s[kLayout.per_lane] = {};
        load_initial(sequence, slot, first_step, s);
        Tree tree;
        const i64 packed_before = packed_steps_before(call, sequence);
#pragma unroll 1
        for (int first = 0; first < span.length; first += Shared::kTokens) {
            const int count = min(Shared::kTokens, span.length - first);
            load_tokens(sequence, span.start + first, count);
#pragma unroll 1
            for (int t = 0; t < count; ++t) {
                StepPlace parent;
                const Tree::Start start = next_in(tree, call, sequence, first + t, parent);
                if (start == Tree::nowhere) {
                    if (lane == 0) shared.value[t][row] = quiet_nan();
                    continue;
                }
                if (start == Tree::from_slot) load_initial(sequence, slot, first_step, s);
                if (start == Tree::from_step) load(call.steps, parent.slot, parent.step, s);
                advance_token(t, s);
                if (const StepPlace kept = step_place(call, sequence, packed_before, first + t); kept.exists())
                    store(call.steps, kept.slot, kept.step, s);
            }
            __syncthreads();
            store_outputs(sequence, span.start + first, count);
            __syncthreads();
        }
        if (keeps_its_slot(call, sequence, span.length)) return;
        if (const i64 last_slot = last_slot_of(call, sequence, slot); last_slot >= 0) store(call.last, last_slot, 0, s);
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
