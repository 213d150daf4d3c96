// The part of gdn/prefill_mma with a state: a warp keeps 16 rows of the state in registers and updates them chunk by chunk.
// Products are transposed (value rows x tokens), so that the state, X and V' are left operands in registers. Only one warp
// accesses its columns of the value tile: it loads them, reads them and overwrites them with the output without a barrier with
// other warps.
#pragma once

#include <gdn_cuda/kernels/common/vector.cuh>
#include <gdn_cuda/kernels/gdn/prefill_mma/common.cuh>

namespace gdn_cuda::gdn {

template <PrefillMmaConfig kConfig>
struct MmaState : MmaLane {
    static constexpr DType kIo = kConfig.io;
    static constexpr int kStateSteps = kConfig.head_k / 16, kTokenSteps = kChunk / 16;
    using Io = Storage<kIo>;
    using Plan = PrefillMmaSharedPlan<kConfig>;

    Plan& shared;
    const GdnCall& call;
    const DType state_type;
    const typename Plan::Work& work = shared.work;

    float state[2 * kStateSteps][4];
    unsigned x[kTokenSteps][4];  // X as left operands
    TokenSums output;

    __device__ __forceinline__ MmaState(Plan& shared, const PrefillMmaArgs& args)
        : shared(shared), call(args.recurrence), state_type(args.state) {}
    __device__ __forceinline__ void refresh() { MmaLane::refresh<kConfig.head_k>(work.first_thread); }

    __device__ __forceinline__ int first_row() const { return work.first_row + PrefillMmaConfig::kWarpRows * warp; }
    __device__ __forceinline__ bool has_rows() const { return first_row() < call.dv; }
    // The tile and the first vector that have the warp's columns of the values.
    __device__ __forceinline__ auto& value_tile() const { return shared.value[warp / 4]; }
    __device__ __forceinline__ int value_vector() const { return warp % 4 * 2; }
    __device__ __forceinline__ int tokens_in(int chunk) const { return min(kChunk, work.length - chunk * kChunk); }

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
        const Io* from = static_cast<const Io*>(work.value) + (chunk * kChunk + mine.token) * call.value.token + mine.row;
#pragma unroll
        for (int i = 0; i < kTokenSteps; ++i) {
            const bool exists = 16 * i < count;
            cp_async_16_zfill(mine.shared + i * kRowBlockBytes, exists ? from + 16 * i * call.value.token : work.value, exists);
        }
    }
    // Overwrites the values with the output, before the state update needs the registers.
    __device__ __forceinline__ void stage_output() const {
        const unsigned first = row_vector(tile_row(value_tile().bytes, g), value_vector()) + 4 * t;
#pragma unroll
        for (int n = 0; n < 2 * kTokenSteps; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                store_shared(row_vector(first, half) + n * (kRowBlockBytes / 2),
                             transposed(pack<kIo>(output[n][2 * half], output[n][2 * half + 1])));
        __syncwarp();
    }
    // Stores the chunk's outputs and starts loading the next chunk's values into their place.
    __device__ __forceinline__ void store_output_and_load_values(int chunk) {
        const Vectors mine = vectors();
        const int count = mine.row < call.outputs ? tokens_in(chunk) - mine.token : 0;
        Io* to = static_cast<Io*>(work.output) + (chunk * kChunk + mine.token) * call.output.token + mine.row;
        Raw<16> eight[kTokenSteps];
#pragma unroll
        for (int i = 0; i < kTokenSteps; ++i) eight[i].bits = load_shared(mine.shared + i * kRowBlockBytes);
        load_values(mine, chunk + 1);
#pragma unroll
        for (int i = 0; i < kTokenSteps; ++i)
            if (16 * i < count) eight[i].store_global(to + 16 * i * call.output.token);
    }

    // ---- One chunk

    static __device__ __forceinline__ void clear(TokenSums& accumulators) {
#pragma unroll
        for (auto& tile : accumulators)
#pragma unroll
            for (float& element : tile) element = 0.f;
    }
    // Warps without rows clear these: otherwise the compiler would keep their registers across chunks.
    __device__ __forceinline__ void clear_results() {
        clear(output);
#pragma unroll
        for (auto& registers : x)
#pragma unroll
            for (unsigned& pair : registers) pair = 0;
    }
    // X = v - exp(G) k S^T and output = scale exp(G) q S^T in one pass over the state, which is rounded once for both: there
    // are no registers to keep the rounded state.
    __device__ __forceinline__ void apply_state(int chunk) {
        refresh();
        __syncwarp();  // every lane's values have arrived
        if (!has_rows()) return clear_results();
        const auto& factors = shared.factors;
        TokenSums predicted;
        clear(predicted);
        clear(output);
        const auto* keys = shared.key[chunk % kConfig.key_stages];
#pragma unroll
        for (int step = 0; step < kStateSteps; ++step) {
            unsigned left[4];
            as_left<kIo>(left, state[2 * step], state[2 * step + 1]);
            add_token_products<kIo>(predicted, left, keys, step);
            add_token_products<kIo>(output, left, shared.query, step);
        }
#pragma unroll
        for (int step = 0; step < kTokenSteps; ++step) {
            unsigned values[4];
            ldmatrix_x4_trans(values, crossed_vector(value_tile().bytes, warp % 4) + step * kRowBlockBytes);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int n = 2 * step + i / 2;
                const float2 factor = pair_of(factors.key_state, n), v = unpack<kIo>(values[i]);
                x[step][i] = pack<kIo>(v.x - factor.x * predicted[n][i % 2 * 2], v.y - factor.y * predicted[n][i % 2 * 2 + 1]);
            }
        }
#pragma unroll
        for (int n = 0; n < 2 * kTokenSteps; ++n) {
            const float2 factor = pair_of(factors.query_state, n);
#pragma unroll
            for (int i = 0; i < 4; ++i) output[n][i] *= i % 2 == 0 ? factor.x : factor.y;
        }
    }
    // Splits 16 tokens of V' into the sum of two left operands.
    static __device__ __forceinline__ void in_two_parts(unsigned (&parts)[2][4], const TokenSums& v, int step) {
        as_left<kIo>(parts[0], v[2 * step], v[2 * step + 1]);
#pragma unroll
        for (int i = 0; i < 4; ++i)
            parts[1][i] = pack_residual<kIo>(v[2 * step + i / 2][i % 2 * 2], v[2 * step + i / 2][i % 2 * 2 + 1], parts[0][i]);
    }
    // MMAs on one accumulator depend on each other, so the loops below issue MMAs on other accumulators between them.

    // V' = X^T T^T
    __device__ __forceinline__ void multiply_inverse(TokenSums& v) {
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
    // output += V'^T P^T, without the product of the two rounding residuals
    __device__ __forceinline__ void add_scores(const TokenSums& v) {
#pragma unroll
        for (int step = 0; step < kTokenSteps; ++step) {
            unsigned parts[2][4], right[kTokenSteps][4];
            in_two_parts(parts, v, step);
#pragma unroll
            for (int part = 0; part < 2; ++part) {
#pragma unroll
                for (int block = step; block < kTokenSteps; ++block)
                    load_part(right[block], shared.scores[ChunkTriangle::index_of(block, step)].parts[part]);
#pragma unroll
                for (int left = 0; left + part < 2; ++left)
#pragma unroll
                    for (int block = step; block < kTokenSteps; ++block) {
                        mma_m16n8k16<kIo>(output[2 * block], parts[left], right[block][0], right[block][1]);
                        mma_m16n8k16<kIo>(output[2 * block + 1], parts[left], right[block][2], right[block][3]);
                    }
            }
        }
    }
    // S <- exp(G_end) S + V'^T exp(G_end - G) k
    __device__ __forceinline__ void update(TokenSums& v, const typename Plan::Tile* keys) {
        refresh();
        const float decay = shared.factors.decay;
#pragma unroll
        for (auto& tile : state)
#pragma unroll
            for (float& element : tile) element *= decay;
#pragma unroll
        for (int step = 0; step < kTokenSteps; ++step) {
#pragma unroll
            for (int n = 2 * step; n < 2 * step + 2; ++n) {
                const float2 factors = pair_of(shared.factors.update, n);
#pragma unroll
                for (int i = 0; i < 4; ++i) v[n][i] *= i % 2 == 0 ? factors.x : factors.y;
            }
            unsigned parts[2][4];
            in_two_parts(parts, v, step);
#pragma unroll
            for (int k = 0; k < kStateSteps; k += 2) {
                unsigned right[2][4];
#pragma unroll
                for (int i = 0; i < 2; ++i) ldmatrix_x4_trans(right[i], straight_vector(keys, k + i) + step * kRowBlockBytes);
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

    // ---- Computing a chunk again whose reset must drop values that are not finite

    // Whether V', the output and the state are finite. They are not where a reset's factor of 0 was multiplied by something
    // that is not finite: a state, key, value or gate before the reset, or a product that overflowed.
    __device__ __forceinline__ bool is_finite(const TokenSums& v) const {
        float zero = 0.f;
        const auto add = [&](const auto& tiles) {
#pragma unroll
            for (const auto& tile : tiles)
#pragma unroll
                for (const float element : tile) zero = fmaf(element, 0.f, zero);
        };
        add(v);
        add(output);
        add(state);
        return __all_sync(0xffffffffu, zero == 0.f);
    }
    // Elements 8 n + 2 t and + 1 of a token's row, where `row` points to element 2 t; zeros past its end. The load is volatile:
    // otherwise keys, which are read twice, would stay in registers, and the state would spill.
    __device__ __forceinline__ float2 pair_of_row(const Io* row, int n) const {
        unsigned pair;
        asm volatile(
            "{\n"
            ".reg .pred exists;\n"
            "setp.ne.u32 exists, %2, 0;\n"
            "mov.u32 %0, 0;\n"
            "@exists ld.global.u32 %0, [%1];\n"
            "}"
            : "=r"(pair)
            : "l"(row + 8 * n), "r"(static_cast<unsigned>(8 * n < call.dk)));
        return unpack<kIo>(pair);
    }
    // Sums over the four lanes that hold the same rows of the state.
    static __device__ __forceinline__ float row_sum(float x) {
        x += __shfl_xor_sync(0xffffffffu, x, 1);
        return x + __shfl_xor_sync(0xffffffffu, x, 2);
    }
    // A token's value in row g + 8 half of the warp's 16 rows.
    __device__ __forceinline__ Io* value_of(int token, int half) const {
        const unsigned vector = row_vector(row_vector(tile_row(value_tile().bytes, token), value_vector()), half);
        return reinterpret_cast<Io*>(__cvta_shared_to_generic(vector)) + g;
    }
    // Computes the recurrence token by token; outputs overwrite the values, as in stage_output. This path is rare, so its code
    // is short. It reads keys, queries and scalars from global memory, as their shared memory may already hold the next chunk.
    __device__ __forceinline__ void advance_by_token(int chunk) {
        constexpr int kPairs = 2 * kStateSteps;
#pragma unroll 1
        for (int token = 0; token < tokens_in(chunk); ++token) {
            refresh();
            const i64 at = chunk * kChunk + token;
            const Io* key = static_cast<const Io*>(work.key) + at * call.key.token + 2 * t;
            const Io* query = static_cast<const Io*>(work.query) + at * call.query.token + 2 * t;
            const float gate = load_float({call.gate.values.data, work.gate_type}, work.gate + at * call.gate.token);
            const float beta = load_float({call.beta.values.data, work.beta_type}, work.beta + at * call.beta.token);
            const float decay = exp2_fast(kLog2e * gate);
            float predicted[2] = {}, square = 0.f;
#pragma unroll
            for (int n = 0; n < kPairs; ++n) {
                const float2 k = pair_of_row(key, n);
                square = fmaf(k.x, k.x, fmaf(k.y, k.y, square));
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    predicted[half] = fmaf(state[n][2 * half], k.x, fmaf(state[n][2 * half + 1], k.y, predicted[half]));
                }
            }
            const float key_scale = call.qk_norm ? rsqrtf(row_sum(square) + kNormEpsilon) : 1.f;
            float update_by_key[2], out[2] = {};
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float sum = decay == 0.f ? 0.f : decay * row_sum(predicted[half]);
                update_by_key[half] = key_scale * beta * (to_float(*value_of(token, half)) - key_scale * sum);
            }
            square = 0.f;
#pragma unroll
            for (int n = 0; n < kPairs; ++n) {
                const float2 k = pair_of_row(key, n), q = pair_of_row(query, n);
                square = fmaf(q.x, q.x, fmaf(q.y, q.y, square));
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    float &x = state[n][2 * half], &y = state[n][2 * half + 1];
                    x = fmaf(update_by_key[half], k.x, decay == 0.f ? 0.f : decay * x);
                    y = fmaf(update_by_key[half], k.y, decay == 0.f ? 0.f : decay * y);
                    out[half] = fmaf(x, q.x, fmaf(y, q.y, out[half]));
                }
            }
            const float query_scale = call.scale * (call.qk_norm ? rsqrtf(row_sum(square) + kNormEpsilon) : 1.f);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float output = query_scale * row_sum(out[half]);  // after its shuffles every lane has read the value
                if (t == 0) *value_of(token, half) = from_float<Io>(output);
            }
        }
        __syncwarp();
    }

    __device__ __forceinline__ void advance(int chunk) {
        refresh();
        if (!has_rows()) return;
        TokenSums v;
        multiply_inverse(v);
        refresh();
        add_scores(v);
        refresh();
        // The shuffles tell the compiler that the branches are warp-uniform: otherwise `chunk` leaves the uniform registers.
        if (__shfl_sync(0xffffffffu, shared.factors.resets, 0))
            if (!__shfl_sync(0xffffffffu, is_finite(v), 0)) return advance_by_token(chunk);
        stage_output();
        const bool last = chunk + 1 == work.chunks && call.last.data == nullptr && call.steps.data == nullptr;
        if (!last) update(v, shared.key[chunk % kConfig.key_stages]);
    }
};

}  // namespace gdn_cuda::gdn
