// A warp of the chunked form by warp MMAs that owns 16 rows of a state, and keeps them in registers from chunk to chunk.
// Products are transposed (value rows x tokens), so that the state and what is formed of values are left operands in
// registers. Only one warp accesses its columns of the value tile: it loads them, reads them and overwrites them with the
// output without a barrier with other warps.
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

template <auto kConfig>
struct MmaRows : MmaPartsLane {
    static constexpr DType kIo = kConfig.io;
    static constexpr int kStateSteps = kConfig.head_k / 16, kTokenSteps = kChunk / 16, kKeyStages = kConfig.key_stages;
    using Io = Storage<kIo>;
    using Plan = MmaPlan<kConfig>;

    Plan& shared;
    const GdnCall& call;
    const DType state_type;
    const MmaWork& work = shared.work;

    float state[2 * kStateSteps][4];

    __device__ __forceinline__ MmaRows(Plan& shared, const GdnCall& call, DType state_type)
        : shared(shared), call(call), state_type(state_type) {}
    __device__ __forceinline__ void refresh() { MmaPartsLane::refresh<kConfig.head_k>(work.first_thread); }

    __device__ __forceinline__ int first_row() const { return work.first_row + kMmaWarpRows * warp; }
    __device__ __forceinline__ bool has_rows() const { return first_row() < call.dv; }
    // The tile and the first vector that have the warp's columns of the values.
    __device__ __forceinline__ auto& value_tile() const { return shared.value[warp / 4]; }
    __device__ __forceinline__ int value_vector() const { return warp % 4 * 2; }
    __device__ __forceinline__ int in_time(int chunk) const { return chunk_in_time<kConfig.direction>(work, chunk); }
    __device__ __forceinline__ int tokens_in(int chunk) const { return tokens_of_chunk<kConfig.direction>(work, chunk); }

    // ---- The state in memory

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
    __device__ __forceinline__ void store_checkpoint(int chunk) {
        const int token = (chunk + 1) * kChunk - 1;
        if (call.steps.data == nullptr || token >= work.length) return;
        store(state_type == DType::f32
                  ? static_cast<void*>(step_state<float>(call, work.sequence, work.checkpoints_before, token))
                  : step_state<__nv_bfloat16>(call, work.sequence, work.checkpoints_before, token));
    }
    __device__ __forceinline__ void store_last() {
        char* data = static_cast<char*>(call.last.data);
        if (data != nullptr) store(data + work.last_slot * bytes_of(state_type));
    }

    // ---- Values and outputs in memory

    // A lane's 16-byte vectors of the warp's columns: every 16th token from token lane / 2 on.
    struct Vectors {
        unsigned shared;
        int token, row;
    };
    __device__ __forceinline__ Vectors vectors() {
        refresh();
        const int vector = lane % 2, token = lane / 2, row = first_row() + 8 * vector;
        return {row_vector(tile_row(value_tile().bytes, token), value_vector() + vector), token, row};
    }
    __device__ __forceinline__ void load_values(const Vectors& mine, int chunk) {
        if (chunk >= work.chunks) return;
        const int count = mine.row < call.values ? tokens_in(chunk) - mine.token : 0;
        const Io* from =
            static_cast<const Io*>(work.value) + (in_time(chunk) * kChunk + mine.token) * call.value.token + mine.row;
#pragma unroll
        for (int i = 0; i < kTokenSteps; ++i) {
            const bool exists = 16 * i < count;
            cp_async_16_zfill(mine.shared + i * kRowBlockBytes, exists ? from + 16 * i * call.value.token : work.value, exists);
        }
    }
    // Overwrites values in a tile, before the state update needs the registers.
    __device__ __forceinline__ void stage(const MmaTile& tile, const TokenSums& output) const {
        const unsigned first = first_staged(tile);
#pragma unroll
        for (int n = 0; n < 2 * kTokenSteps; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                stage_pair(first, n, half, pack<kIo>(output[n][2 * half], output[n][2 * half + 1]));
        __syncwarp();
    }
    __device__ __forceinline__ unsigned first_staged(const MmaTile& tile) const {
        return row_vector(tile_row(tile.bytes, g), value_vector()) + 4 * t;
    }
    // Stores the chunk's outputs and starts loading the next chunk's values into their place.
    __device__ __forceinline__ void store_output_and_load_values(int chunk) {
        const Vectors mine = vectors();
        const int count = mine.row < call.outputs ? tokens_in(chunk) - mine.token : 0;
        Io* to = static_cast<Io*>(work.output) + (in_time(chunk) * kChunk + mine.token) * call.output.token + mine.row;
        store_staged(mine.shared, to, call.output.token, count, [&] { load_values(mine, chunk + 1); });
    }

    // ---- Products

    static __device__ __forceinline__ void clear(TokenSums& accumulators) {
#pragma unroll
        for (auto& tile : accumulators)
#pragma unroll
            for (float& element : tile) element = 0.f;
    }
    // Splits 16 tokens of V' into the sum of two left operands.
    static __device__ __forceinline__ void in_two_parts(unsigned (&parts)[2][4], const TokenSums& v, int step) {
        as_left<kIo>(parts[0], v[2 * step], v[2 * step + 1]);
#pragma unroll
        for (int i = 0; i < 4; ++i)
            parts[1][i] = pack_residual<kIo>(v[2 * step + i / 2][i % 2 * 2], v[2 * step + i / 2][i % 2 * 2 + 1], parts[0][i]);
    }
    // V' = X^T T^T
    __device__ __forceinline__ void apply_inverse(TokenSums& v, const TokenOperands& x) const {
        clear(v);
#pragma unroll
        for (int step = 0; step < kTokenSteps; ++step)
#pragma unroll
            for (int part = 0; part < 2; ++part)
#pragma unroll
                for (int block = step; block < kTokenSteps; ++block) {
                    unsigned right[4];
                    load_part(right, as_two_parts(shared.inverse.block(block, step)).parts[part]);
                    mma_m16n8k16<kIo>(v[2 * block], x[step], right[0], right[1]);
                    mma_m16n8k16<kIo>(v[2 * block + 1], x[step], right[2], right[3]);
                }
    }
    __device__ __forceinline__ void decay_state() {
        const float decay = shared.factors.decay;
#pragma unroll
        for (auto& tile : state)
#pragma unroll
            for (float& element : tile) element *= decay;
    }
    // state += v^T diag(factors) tokens, of keys or queries; v is split into two parts.
    __device__ __forceinline__ void add_tokens(TokenSums& v, const float (&factors)[kChunk], const MmaTile* tokens) {
#pragma unroll
        for (int step = 0; step < kTokenSteps; ++step) {
#pragma unroll
            for (int n = 2 * step; n < 2 * step + 2; ++n) {
                const float2 factor = pair_of(factors, n);
#pragma unroll
                for (int i = 0; i < 4; ++i) v[n][i] *= i % 2 == 0 ? factor.x : factor.y;
            }
            unsigned parts[2][4];
            in_two_parts(parts, v, step);
#pragma unroll
            for (int k = 0; k < kStateSteps; k += 2) {
                unsigned right[2][4];
#pragma unroll
                for (int i = 0; i < 2; ++i) ldmatrix_x4_trans(right[i], straight_vector(tokens, k + i) + step * kRowBlockBytes);
#pragma unroll
                for (int part = 0; part < 2; ++part)
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        mma_m16n8k16<kIo>(state[2 * (k + i)], parts[part], right[i][0], right[i][1]);
                        mma_m16n8k16<kIo>(state[2 * (k + i) + 1], parts[part], right[i][2], right[i][3]);
                    }
            }
        }
    }
};

}  // namespace gdn_cuda::gdn
