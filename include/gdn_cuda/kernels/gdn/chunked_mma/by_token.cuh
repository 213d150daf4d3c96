// The recurrence token by token in a warp that owns 16 rows of a state, for chunks whose reset must drop values that are not
// finite. This path is rare, so its code is short. It reads keys and queries from global memory, as their shared memory may
// already hold the next chunk.
#pragma once

#include <gdn_cuda/kernels/common/opaque.cuh>
#include <gdn_cuda/kernels/gdn/chunked_mma/state_rows.cuh>
#include <gdn_cuda/kernels/recurrence/channel_decay.cuh>

namespace gdn_cuda::gdn {

// Elements 8 n + 2 t and + 1 of a token's row, where `row` points to element 2 t; zeros past its end. The load is volatile:
// otherwise keys, which are read twice, would stay in registers, and the state would spill.
template <class Owner>
__device__ __forceinline__ float2 pair_of_row(const typename Owner::Io* row, int n, int dk) {
    unsigned pair;
    asm volatile(
        "{\n"
        ".reg .pred exists;\n"
        "setp.ne.u32 exists, %2, 0;\n"
        "mov.u32 %0, 0;\n"
        "@exists ld.global.u32 %0, [%1];\n"
        "}"
        : "=r"(pair)
        : "l"(row + 8 * n), "r"(static_cast<unsigned>(8 * n < dk)));
    return unpack<Owner::kIo>(pair);
}
// Sums over the four lanes that hold the same rows of the state.
__device__ __forceinline__ float row_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
// Tokens [first, first + count) of the sequence, whose values own.value_at(token of the chunk, half) points to; outputs
// overwrite them. decays_of(token)(n): of columns 8 n + 2 t and + 1.
template <class Owner, class Decays, class Beta>
__device__ __forceinline__ void advance_by_token(Owner& own, i64 first, int count, Decays&& decays_of, Beta&& beta_of) {
    using Io = typename Owner::Io;
    constexpr int kPairs = 2 * Owner::kStateSteps;
#pragma unroll 1
    for (int token = 0; token < count; ++token) {
        own.refresh();
        const int dk = opaque(own.call.dk);  // else comparisons with it would be kept in registers
        const i64 at = first + token;
        const Io* key = static_cast<const Io*>(own.work.key) + at * own.call.key.token + 2 * own.t;
        const Io* query = static_cast<const Io*>(own.work.query) + at * own.call.query.token + 2 * own.t;
        const auto decays = decays_of(at);
        float predicted[2] = {}, square = 0.f;
#pragma unroll
        for (int n = 0; n < kPairs; ++n) {
            const float2 k = pair_of_row<Owner>(key, n, dk), decay = decays(n);
            square = fmaf(k.x, k.x, fmaf(k.y, k.y, square));
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float &x = own.state[n][2 * half], &y = own.state[n][2 * half + 1];
                x = decayed(x, decay.x);
                y = decayed(y, decay.y);
                predicted[half] = fmaf(x, k.x, fmaf(y, k.y, predicted[half]));
            }
        }
        const float key_scale = own.call.qk_norm ? rsqrtf(row_sum(square) + kNormEpsilon) : 1.f,
                    update_scale = key_scale * beta_of(at);
        float update_by_key[2], out[2] = {};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float sum = row_sum(predicted[half]);
            update_by_key[half] = update_scale * (to_float(*own.value_at(token, half)) - key_scale * sum);
        }
        square = 0.f;
#pragma unroll
        for (int n = 0; n < kPairs; ++n) {
            const float2 k = pair_of_row<Owner>(key, n, dk), q = pair_of_row<Owner>(query, n, dk);
            square = fmaf(q.x, q.x, fmaf(q.y, q.y, square));
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float &x = own.state[n][2 * half], &y = own.state[n][2 * half + 1];
                x = fmaf(update_by_key[half], k.x, x);
                y = fmaf(update_by_key[half], k.y, y);
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

}  // namespace gdn_cuda::gdn
