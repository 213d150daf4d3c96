// What a chunk does in gdn/prefill_mma to a warp's rows of the state, and its outputs.
#pragma once

#include <gdn_cuda/kernels/gdn/chunked_mma/by_token.cuh>
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
// It reads gates and betas from global memory, as their shared memory may already hold the next chunk.
template <class Owner>
__device__ __forceinline__ void advance_by_token(Owner& own, int chunk) {
    const auto load = [&](const Scalars& scalars, i64 first, DType type, i64 token) {
        return load_float({scalars.values.data, type}, first + token * scalars.token);
    };
    const auto decays_of = [&](i64 token) {
        const float decay = exp2_fast(kLog2e * load(own.call.gate, own.work.gate, own.work.gate_type, token));
        return [decay](int) { return float2{decay, decay}; };
    };
    const auto beta_of = [&](i64 token) { return load(own.call.beta, own.work.beta, own.work.beta_type, token); };
    advance_by_token(own, chunk * i64{kChunk}, own.tokens_in(chunk), decays_of, beta_of);
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
