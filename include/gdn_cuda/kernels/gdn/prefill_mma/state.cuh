// What a chunk does in gdn/prefill_mma to a warp's rows of the state, and its outputs.
#pragma once

#include <gdn_cuda/kernels/gdn/chunked_mma/rows.cuh>

namespace gdn_cuda::gdn {

// Warps without rows clear these: otherwise the compiler would keep their registers across chunks.
template <class Owner>
__device__ __forceinline__ void clear_results(const Owner& own, TokenOperands& x, MmaLane::TokenSums& output) {
    own.clear(output);
#pragma unroll
    for (auto& registers : x)
#pragma unroll
        for (unsigned& pair : registers) pair = 0;
}
// X = v - exp(G) k S^T and output = scale exp(G) q S^T in one pass over the state, which is rounded once for both: there
// are no registers to keep the rounded state.
template <class Owner>
__device__ __forceinline__ void apply_state(Owner& own, TokenOperands& x, MmaLane::TokenSums& output, int chunk) {
    constexpr DType kIo = Owner::kIo;
    own.refresh();
    __syncwarp();  // every lane's values have arrived
    if (!own.has_rows()) return clear_results(own, x, output);
    const auto& factors = own.shared.factors;
    MmaLane::TokenSums predicted;
    own.clear(predicted);
    own.clear(output);
    const auto* keys = own.shared.key[chunk % Owner::kKeyStages];
#pragma unroll
    for (int step = 0; step < Owner::kStateSteps; ++step) {
        unsigned left[4];
        as_left<kIo>(left, own.state[2 * step], own.state[2 * step + 1]);
        own.template add_token_products<kIo>(predicted, left, keys, step);
        own.template add_token_products<kIo>(output, left, own.shared.query, step);
    }
#pragma unroll
    for (int step = 0; step < Owner::kTokenSteps; ++step) {
        unsigned values[4];
        ldmatrix_x4_trans(values, own.crossed_vector(own.value_tile().bytes, own.warp % 4) + step * Owner::kRowBlockBytes);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int n = 2 * step + i / 2;
            const float2 factor = own.pair_of(factors.key_state, n), v = unpack<kIo>(values[i]);
            x[step][i] = pack<kIo>(v.x - factor.x * predicted[n][i % 2 * 2], v.y - factor.y * predicted[n][i % 2 * 2 + 1]);
        }
    }
#pragma unroll
    for (int n = 0; n < 2 * Owner::kTokenSteps; ++n) {
        const float2 factor = own.pair_of(factors.query_state, n);
#pragma unroll
        for (int i = 0; i < 4; ++i) output[n][i] *= i % 2 == 0 ? factor.x : factor.y;
    }
}
// MMAs on one accumulator depend on each other, so the loops below issue MMAs on other accumulators between them.

// output += V'^T P^T, without the product of the two rounding residuals
template <class Owner>
__device__ __forceinline__ void add_scores(const Owner& own, MmaLane::TokenSums& output, const MmaLane::TokenSums& v) {
    constexpr DType kIo = Owner::kIo;
#pragma unroll
    for (int step = 0; step < Owner::kTokenSteps; ++step) {
        unsigned parts[2][4], right[Owner::kTokenSteps][4];
        own.in_two_parts(parts, v, step);
#pragma unroll
        for (int part = 0; part < 2; ++part) {
#pragma unroll
            for (int block = step; block < Owner::kTokenSteps; ++block)
                own.load_part(right[block], own.shared.scores[ChunkTriangle::index_of(block, step)].parts[part]);
#pragma unroll
            for (int left = 0; left + part < 2; ++left)
#pragma unroll
                for (int block = step; block < Owner::kTokenSteps; ++block) {
                    mma_m16n8k16<kIo>(output[2 * block], parts[left], right[block][0], right[block][1]);
                    mma_m16n8k16<kIo>(output[2 * block + 1], parts[left], right[block][2], right[block][3]);
                }
        }
    }
}
// ---- Computing a chunk again whose reset must drop values that are not finite

// Whether V', the output and the state are finite. They are not where a reset's factor of 0 was multiplied by something
// that is not finite: a state, key, value or gate before the reset, or a product that overflowed.
template <class Owner>
__device__ __forceinline__ bool is_finite(const Owner& own, const MmaLane::TokenSums& output, const MmaLane::TokenSums& v) {
    float zero = 0.f;
    const auto add = [&](const auto& tiles) {
#pragma unroll
        for (const auto& tile : tiles)
#pragma unroll
            for (const float element : tile) zero = fmaf(element, 0.f, zero);
    };
    add(v);
    add(output);
    add(own.state);
    return __all_sync(0xffffffffu, zero == 0.f);
}
// Elements 8 n + 2 t and + 1 of a token's row, where `row` points to element 2 t; zeros past its end. The load is volatile:
// otherwise keys, which are read twice, would stay in registers, and the state would spill.
template <class Owner>
__device__ __forceinline__ float2 pair_of_row(const Owner& own, const typename Owner::Io* row, int n) {
    unsigned pair;
    asm volatile(
        "{\n"
        ".reg .pred exists;\n"
        "setp.ne.u32 exists, %2, 0;\n"
        "mov.u32 %0, 0;\n"
        "@exists ld.global.u32 %0, [%1];\n"
        "}"
        : "=r"(pair)
        : "l"(row + 8 * n), "r"(static_cast<unsigned>(8 * n < own.call.dk)));
    return unpack<Owner::kIo>(pair);
}
// Sums over the four lanes that hold the same rows of the state.
__device__ __forceinline__ float row_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
// Computes the recurrence token by token; outputs overwrite the values, as in MmaRows::stage. This path is rare, so its code
// is short. It reads keys, queries and scalars from global memory, as their shared memory may already hold the next chunk.
template <class Owner>
__device__ __forceinline__ void advance_by_token(Owner& own, int chunk) {
    using Io = typename Owner::Io;
    constexpr int kPairs = 2 * Owner::kStateSteps;
#pragma unroll 1
    for (int token = 0; token < own.tokens_in(chunk); ++token) {
        own.refresh();
        const i64 at = chunk * kChunk + token;
        const Io* key = static_cast<const Io*>(own.work.key) + at * own.call.key.token + 2 * own.t;
        const Io* query = static_cast<const Io*>(own.work.query) + at * own.call.query.token + 2 * own.t;
        const float gate =
            load_float({own.call.gate.values.data, own.work.gate_type}, own.work.gate + at * own.call.gate.token);
        const float beta =
            load_float({own.call.beta.values.data, own.work.beta_type}, own.work.beta + at * own.call.beta.token);
        const float decay = exp2_fast(kLog2e * gate);
        float predicted[2] = {}, square = 0.f;
#pragma unroll
        for (int n = 0; n < kPairs; ++n) {
            const float2 k = pair_of_row(own, key, n);
            square = fmaf(k.x, k.x, fmaf(k.y, k.y, square));
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                predicted[half] = fmaf(own.state[n][2 * half], k.x, fmaf(own.state[n][2 * half + 1], k.y, predicted[half]));
            }
        }
        const float key_scale = own.call.qk_norm ? rsqrtf(row_sum(square) + kNormEpsilon) : 1.f;
        float update_by_key[2], out[2] = {};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float sum = decay == 0.f ? 0.f : decay * row_sum(predicted[half]);
            update_by_key[half] = key_scale * beta * (to_float(*own.value_at(token, half)) - key_scale * sum);
        }
        square = 0.f;
#pragma unroll
        for (int n = 0; n < kPairs; ++n) {
            const float2 k = pair_of_row(own, key, n), q = pair_of_row(own, query, n);
            square = fmaf(q.x, q.x, fmaf(q.y, q.y, square));
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float &x = own.state[n][2 * half], &y = own.state[n][2 * half + 1];
                x = fmaf(update_by_key[half], k.x, decay == 0.f ? 0.f : decay * x);
                y = fmaf(update_by_key[half], k.y, decay == 0.f ? 0.f : decay * y);
                out[half] = fmaf(x, q.x, fmaf(y, q.y, out[half]));
            }
        }
        const float query_scale = own.call.scale * (own.call.qk_norm ? rsqrtf(row_sum(square) + kNormEpsilon) : 1.f);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float output = query_scale * row_sum(out[half]);  // after its shuffles every lane has read the value
            if (own.t == 0) *own.value_at(token, half) = from_float<Io>(output);
        }
    }
    __syncwarp();
}

template <class Owner>
__device__ __forceinline__ void advance(Owner& own, const TokenOperands& x, MmaLane::TokenSums& output, int chunk) {
    own.refresh();
    if (!own.has_rows()) return;
    MmaLane::TokenSums v;
    own.apply_inverse(v, x);
    own.refresh();
    add_scores(own, output, v);
    own.refresh();
    // The shuffles tell the compiler that the branches are warp-uniform: otherwise `chunk` leaves the uniform registers.
    if (__shfl_sync(0xffffffffu, own.shared.factors.resets, 0))
        if (!__shfl_sync(0xffffffffu, is_finite(own, output, v), 0)) return advance_by_token(own, chunk);
    own.stage(own.value_tile(), output);
    const bool last = chunk + 1 == own.work.chunks && own.call.last.data == nullptr && own.call.steps.data == nullptr;
    if (last) return;
    own.refresh();
    own.decay_state();
    own.add_tokens(v, own.shared.factors.update, own.shared.key[chunk % Owner::kKeyStages]);
}

}  // namespace gdn_cuda::gdn
