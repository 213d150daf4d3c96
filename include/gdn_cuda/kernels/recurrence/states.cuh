// Where a sequence's states start and go, and the outputs of sequences that are not computed.
#pragma once

#include <gdn_cuda/kernels/common/state_slots.cuh>
#include <gdn_cuda/kernels/common/token_tree.cuh>
#include <gdn_cuda/kernels/common/varlen.cuh>
#include <gdn_cuda/kernels/recurrence/call.cuh>
#include <gdn_cuda/kernels/recurrence/state_codes.cuh>

namespace gdn_cuda::gdn {

// Whether a sequence reads the state in its slot.
__device__ __forceinline__ bool has_initial_state(const GdnCall& call, int sequence) {
    return call.initial.data != nullptr && (call.has_initial == nullptr || call.has_initial[sequence]);
}

// Whether a sequence has nothing to compute and nothing to store: it has no tokens, and its slot holds its state already.
// Others without tokens store the state that they start from.
__device__ __forceinline__ bool keeps_its_slot(const GdnCall& call, int sequence, int length) {
    return length == 0 && call.last_slots.data == nullptr && call.last.data == call.initial.data &&
           has_initial_state(call, sequence);
}

// The slot for the state after the last token of a sequence that starts from `slot`; negative: none.
__device__ __forceinline__ i64 last_slot_of(const GdnCall& call, int sequence, i64 slot) {
    if (call.last.data == nullptr) return -1;
    if (call.last_slots.data == nullptr) return slot;
    const i64 last = load_index(call.last_slots, sequence);
    return last == call.null_slot || last >= call.last_slot_count ? -1 : last;
}

// Where the state after a token is stored.
struct StepPlace {
    i64 slot = -1, step = 0;

    __device__ __forceinline__ bool exists() const { return slot >= 0; }
    __device__ __forceinline__ i64 offset(const RecurrentStates& steps) const {  // in elements; negative: nowhere
        return exists() ? slot * steps.slot + step * steps.step : -1;
    }
};

// Packed, there is one row per `step_interval` tokens of the whole batch; overlapping sequences (varlen.cuh) could exceed that,
// and states without a row are dropped.
__device__ __forceinline__ StepPlace step_place(const GdnCall& call, int sequence, i64 packed_before, int t) {
    if (call.steps.data == nullptr || t >= call.step_limit) return {};
    i64 slot = sequence;
    i64 step = t;
    if (call.step_interval != 1) {  // the usual case divides nothing
        if ((t + 1) % call.step_interval != 0) return {};
        step = t / call.step_interval;
    }
    switch (call.step_index) {
        case GdnCall::by_sequence:
            break;
        case GdnCall::packed:
            slot = 0;
            step += packed_before;
            if ((step + 1) * call.step_interval > call.tokens) return {};
            break;
        case GdnCall::by_slot_of_token:
            slot = load_index(call.slots, sequence * call.slots_sequence + t * call.slots_token);
            if (slot < 0 || slot == call.null_slot || slot >= call.slot_count) return {};
            step = 0;
            break;
        case GdnCall::by_step_slot:
            slot = load_index(call.step_slots, sequence);
            if (slot < 0 || slot >= call.step_slot_count) return {};
            break;
    }
    return {slot, step};
}

template <class T>
__device__ __forceinline__ T* step_state(const GdnCall& call, int sequence, i64 packed_before, int t) {
    const i64 offset = step_place(call, sequence, packed_before, t).offset(call.steps);
    return offset < 0 ? nullptr : static_cast<T*>(call.steps.data) + offset;
}

// Where token t of a tree starts from; `step` is where its parent's state is.
__device__ __forceinline__ Tree::Start next_in(Tree& tree, const GdnCall& call, int sequence, int t, StepPlace& step) {
    return tree.next(call, sequence, t, [&](int parent) {
        step = step_place(call, sequence, 0, parent);
        return step.exists();
    });
}

// Step states of the sequences packed before this one.
__device__ __forceinline__ i64 packed_steps_before(const GdnCall& call, int sequence) {
    if (call.steps.data == nullptr || call.step_index != GdnCall::packed) return 0;
    if (call.step_interval == 1) return span_of(call.cu_seqlens, sequence, call.tokens).start;
    i64 before = 0;
#pragma unroll 1
    for (int n = 0; n < sequence; ++n) before += span_of(call.cu_seqlens, n, call.tokens).length / call.step_interval;
    return before;
}

// Fills rows of the outputs of tokens [first, last) with `x`: those of a block, at most as many as its threads.
template <class Io>
__device__ __forceinline__ void fill_rows(const GdnCall& call, int sequence, i64 first, i64 last, int head, int first_row,
                                          int rows, float x) {
    Io* outputs = static_cast<Io*>(call.output.data) + sequence * call.output.batch + head * call.output.head + first_row;
    const int at_once = static_cast<int>(blockDim.x) / rows, mine = static_cast<int>(threadIdx.x) / rows,  // tokens
        row = static_cast<int>(threadIdx.x) % rows;
    if (mine >= at_once) return;
#pragma unroll 1
    for (i64 token = first + mine; token < last; token += at_once) outputs[token * call.output.token + row] = from_float<Io>(x);
}
// The outputs of a sequence that is not computed: what they become, and up to which token.
__device__ __forceinline__ float output_of_uncomputed(Place place) {
    return place == Place::skip ? 0.f : quiet_nan();
}
__device__ __forceinline__ i64 end_of_uncomputed(const GdnCall& call, const Span& span, Place place) {
    return place == Place::skip && call.keeps_skipped ? span.start : span.start + span.length;
}
template <auto kConfig>
__device__ __forceinline__ void fill_outputs(const GdnCall& call, int sequence, i64 first, i64 last, int head, int first_row,
                                             float x) {
    const int rows = min(kConfig.rows_per_block(), call.outputs - first_row);
    if (rows > 0) fill_rows<Storage<kConfig.io>>(call, sequence, first, last, head, first_row, rows, x);
}

template <auto kConfig>
__device__ __forceinline__ void fill_outputs_of_uncomputed(const GdnCall& call, int sequence, const Span& span, Place place,
                                                           int head, int first_row) {
    fill_outputs<kConfig>(call, sequence, span.start, end_of_uncomputed(call, span, place), head, first_row,
                          output_of_uncomputed(place));
}

}  // namespace gdn_cuda::gdn
