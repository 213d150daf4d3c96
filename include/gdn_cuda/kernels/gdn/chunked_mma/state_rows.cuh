// A warp's 16 rows of a state in registers, in a block that takes a sequence, a value head and some rows of its state; and
// where they come from and go to.
#pragma once

#include <gdn_cuda/kernels/gdn/chunked_mma/lane.cuh>

namespace gdn_cuda::gdn {

// By one thread. `slot`: of the sequence's state.
template <auto kConfig>
__device__ __forceinline__ MmaWork work_of_block(const GdnCall& call, int sequence, const Span& span, i64 slot, int head,
                                                 int first_row) {
    using Io = Storage<kConfig.io>;
    const int key_head = static_cast<int>(static_cast<unsigned>(head) / static_cast<unsigned>(call.heads_per_key));
    const auto first = [&](const auto& tensor, int h) {
        return sequence * tensor.batch + span.start * tensor.token + h * tensor.head;
    };
    const auto row = [&](const Rows& rows, int h) { return static_cast<Io*>(rows.data) + first(rows, h); };
    return {.key = row(call.key, key_head),
            .query = row(call.query, key_head),
            .value = row(call.value, head),
            .output = row(call.output, head),
            .gate = first(call.gate, head),
            .beta = first(call.beta, head),
            .initial_slot = slot * call.initial.slot,
            .last_slot = slot * call.last.slot,
            .checkpoints_before = packed_steps_before(call, sequence),
            .length = span.length,
            .chunks = (span.length + kChunk - 1) / kChunk,
            .sequence = sequence,
            .head = head,
            .first_row = first_row,
            .first_thread = 0,
            .gate_type = call.gate.values.type,
            .beta_type = call.beta.values.type};
}
// The block's work, and the outputs of tokens that no block computes. False if the block has nothing to compute.
template <auto kConfig>
__device__ __forceinline__ bool begin_block(const GdnCall& call, MmaWork& work) {
    const int sequence = blockIdx.z, head = blockIdx.y, first_row = static_cast<int>(blockIdx.x) * kConfig.rows_per_block();
    const Span span = span_of(call.cu_seqlens, sequence, call.tokens);
    i64 slot;
    int first_step;
    const Place place = starting_slot(call, sequence, slot, first_step);
    if (call.cu_seqlens.data != nullptr && sequence == call.sequences - 1)  // tokens after the last sequence
        fill_outputs<kConfig>(call, sequence, span.start + span.length, call.tokens, head, first_row, 0.f);
    if (place != Place::run) {
        fill_outputs_of_uncomputed<kConfig>(call, sequence, span, place, head, first_row);
        return false;
    }
    if (threadIdx.x == 0) work = work_of_block<kConfig>(call, sequence, span, slot, head, first_row);
    __syncthreads();
    return true;
}

// `Plan`: the block's shared memory, with its work.
template <auto kConfig, class Plan>
struct MmaStateRows : MmaPartsLane {
    static constexpr DType kIo = kConfig.io;
    static constexpr int kStateSteps = kConfig.head_k / 16;
    using Io = Storage<kIo>;

    Plan& shared;
    const GdnCall& call;
    const DType state_type;
    const MmaWork& work = shared.work;

    float state[2 * kStateSteps][4];

    __device__ __forceinline__ MmaStateRows(Plan& shared, const GdnCall& call, DType state_type)
        : shared(shared), call(call), state_type(state_type) {}
    __device__ __forceinline__ void refresh() { MmaPartsLane::refresh<kConfig.head_k>(work.first_thread); }

    __device__ __forceinline__ int first_row() const { return work.first_row + kMmaWarpRows * warp; }
    __device__ __forceinline__ bool has_rows() const { return first_row() < call.dv; }

    // Calls visit(element, next element, their offset in the slot, whether they exist) for this lane's elements.
    template <class Visit>
    __device__ __forceinline__ void for_each_pair(Visit&& visit) {
        refresh();
        const int dk = call.dk, dv = call.dv;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = first_row() + g + 8 * half;
            const i64 at = (static_cast<i64>(work.head) * dv + row) * dk + 2 * t;
#pragma unroll
            for (int n = 0; n < 2 * kStateSteps; ++n)
                visit(state[n][2 * half], state[n][2 * half + 1], at + 8 * n, row < dv && 8 * n < dk);
        }
    }
    // Pairs that do not exist are loaded from offset 0 and dropped: predicated loads would need a second set of registers.
    __device__ __forceinline__ void load() {
        if (call.initial.data == nullptr) {
            for_each_pair([](float& a, float& b, i64, bool) { a = b = 0.f; });
        } else if (state_type == DType::f32) {
            const float* slot = static_cast<const float*>(call.initial.data) + work.initial_slot;
            for_each_pair([&](float& a, float& b, i64 at, bool exists) {
                const float2 pair = *reinterpret_cast<const float2*>(slot + (exists ? at : 0));
                a = exists ? pair.x : 0.f;
                b = exists ? pair.y : 0.f;
            });
        } else {
            const auto* slot = static_cast<const __nv_bfloat16*>(call.initial.data) + work.initial_slot;
            for_each_pair([&](float& a, float& b, i64 at, bool exists) {
                const float2 pair = unpack<DType::bf16>(*reinterpret_cast<const unsigned*>(slot + (exists ? at : 0)));
                a = exists ? pair.x : 0.f;
                b = exists ? pair.y : 0.f;
            });
        }
    }
    __device__ __forceinline__ void store(void* slot) {
        if (slot == nullptr) return;
        if (state_type == DType::f32) {
            for_each_pair([&](float a, float b, i64 at, bool exists) {
                if (exists) *reinterpret_cast<float2*>(static_cast<float*>(slot) + at) = {a, b};
            });
        } else {
            for_each_pair([&](float a, float b, i64 at, bool exists) {
                if (exists) *reinterpret_cast<unsigned*>(static_cast<__nv_bfloat16*>(slot) + at) = pack<DType::bf16>(a, b);
            });
        }
    }
    // After `token`, where the call wants a checkpoint there.
    __device__ __forceinline__ void store_checkpoint_after(int token) {
        if (call.steps.data == nullptr || token >= work.length) return;
        store(state_type == DType::f32
                  ? static_cast<void*>(step_state<float>(call, work.sequence, work.checkpoints_before, token))
                  : step_state<__nv_bfloat16>(call, work.sequence, work.checkpoints_before, token));
    }
    __device__ __forceinline__ void store_last() {
        char* data = static_cast<char*>(call.last.data);
        if (data != nullptr) store(data + work.last_slot * bytes_of(state_type));
    }
};

}  // namespace gdn_cuda::gdn
