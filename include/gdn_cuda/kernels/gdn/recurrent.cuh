// gdn/recurrent: the recurrence of Gated Delta Net, token by token, with the state in registers.
//
//     S <- exp(g) S        v' = beta (v - S k)        S <- S + v' k^T        o = scale S q
//
// Rows of S (one value dimension each) are independent, so a group of lanes owns a few rows and keeps them in registers from
// the first token to the last: S is read and written once however many tokens there are (recurrence/state_row.cuh). A block
// loads a batch of tokens into shared memory for all its rows, while loads of the state are in flight.
//
// With channel_gates, g has a value for every channel of the key, and S <- S diag(exp(g)).
//
// It runs packed batches, odd head dimensions and strides, and chunked_forward where rows are not 16-byte aligned.
//
// Bound: with few tokens, memory, the state read and written once; with many, the latency of a token, as each needs the state
// after the one before it. Its share was not measured: the benchmarks of recurrent_forward run gdn/decode and gdn/verify.
#pragma once

#include <gdn_cuda/kernels/gdn/recurrent/plan.cuh>
#include <gdn_cuda/kernels/gdn/recurrent/tokens.cuh>

namespace gdn_cuda::gdn {

template <RecurrentConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.blocks_at_least())
    recurrent(const __grid_constant__ GdnCall call) {
    constexpr StateLayout kLayout = kConfig.layout();
    constexpr int kRows = kConfig.rows_per_thread;
    constexpr int kBatch = TokenBatch<kConfig>::kTokens;
    using State = Storage<kConfig.state>;
    using Slice = StateSlice<State, kLayout, kConfig.aligned, kConfig.exact_k>;
    __shared__ TokenBatch<kConfig> shared;

    const int lane = threadIdx.x % kLayout.lanes, group = threadIdx.x / kLayout.lanes;
    const int first_row = blockIdx.x * kConfig.rows_per_block();
    const int head = blockIdx.y;
    const auto row_of = [&](int r) { return group + r * (kConfig.threads() / kLayout.lanes); };  // index in the block
    const auto in_range = [&](int r) { return first_row + row_of(r) < call.dv; };
    const auto row_offset = [&](int r) { return (static_cast<i64>(head) * call.dv + first_row + row_of(r)) * call.dk; };

#pragma unroll 1
    for (int sequence = blockIdx.z; sequence < call.sequences; sequence += gridDim.z) {
        i64 slot;
        int first_step;
        const Place place = starting_slot(call, sequence, slot, first_step);
        const Span span = span_of(call.cu_seqlens, sequence, call.tokens);
        if (call.cu_seqlens.data != nullptr && sequence == call.sequences - 1)  // tokens after the last sequence
            fill_outputs<kConfig>(call, sequence, span.start + span.length, call.tokens, head, first_row, 0.f);
        if (place != Place::run) {
            fill_outputs_of_uncomputed<kConfig>(call, sequence, span, place, head, first_row);
            continue;
        }

        Slice slices[kRows];
        const bool from_memory = has_initial_state(call, sequence);
        const StatePointer<State> initial = state_at<State>(call.initial, slot, first_step);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            if (from_memory && in_range(r)) {
                slices[r].load_streaming(initial + row_offset(r), lane, call.dk);
            } else {
                slices[r].clear();
            }
        }
        const i64 packed_before = packed_steps_before(call, sequence);
        float rows[kRows][kLayout.per_lane];
        Tree tree;

#pragma unroll 1
        for (int first = 0; first == 0 || first < span.length; first += kBatch) {
            const int count = min(kBatch, span.length - first);
            bool may_reset = false;
            if (count > 0) may_reset = load_tokens<kConfig>(shared, call, sequence, span.start + first, count, head, first_row);
            if (first == 0)
#pragma unroll
                for (int r = 0; r < kRows; ++r)
#pragma unroll
                    for (int i = 0; i < kLayout.per_lane; ++i) rows[r][i] = slices[r][i];

#pragma unroll 1
            for (int t = 0; t < count; ++t) {
                StepPlace step;
                const Tree::Start start = next_in(tree, call, sequence, first + t, step);
                if (start == Tree::nowhere) {
#pragma unroll
                    for (int r = 0; r < kRows; ++r)
                        if (lane == 0) shared.value[t][row_of(r)] = quiet_nan();
                    continue;
                }
                if (start != Tree::go_on) {
                    const StatePointer<State> from =
                        start == Tree::from_slot ? initial : state_at<State>(call.steps, step.slot, step.step);
#pragma unroll
                    for (int r = 0; r < kRows; ++r) {
                        Slice slice;
                        if ((from_memory || start == Tree::from_step) && in_range(r)) {
                            slice.load_streaming(from + row_offset(r), lane, call.dk);
                        } else {
                            slice.clear();
                        }
#pragma unroll
                        for (int i = 0; i < kLayout.per_lane; ++i) rows[r][i] = slice[i];
                    }
                }
                advance_rows<kConfig>(shared, t, rows, lane, may_reset, row_of);
                if (const StepPlace kept = step_place(call, sequence, packed_before, first + t); kept.exists()) {
                    const StatePointer<State> to = state_at<State>(call.steps, kept.slot, kept.step);
#pragma unroll
                    for (int r = 0; r < kRows; ++r) {
                        Slice slice;
                        slice.store_if(in_range(r), to + row_offset(r), lane, call.dk, rows[r]);
                    }
                }
            }
            __syncthreads();
            store_outputs<kConfig>(shared, call, sequence, span.start + first, count, head, first_row);
            __syncthreads();
        }

        if (keeps_its_slot(call, sequence, span.length)) continue;
        if (const i64 last_slot = last_slot_of(call, sequence, slot); last_slot >= 0) {
            const StatePointer<State> last = state_at<State>(call.last, last_slot, 0);
#pragma unroll
            for (int r = 0; r < kRows; ++r) slices[r].store_if(in_range(r), last + row_offset(r), lane, call.dk, rows[r]);
        }
    }
}

}  // namespace gdn_cuda::gdn
