// A chunk of gdn/kda_mma token by token, where a reset must drop values that are not finite, by each warp for its rows, four at
// a time in shared memory: with the state in registers, loops over it would be unrolled and spill. It loads tokens from global
// memory, as shared memory may already hold the next chunk. Rare, and many times slower.
#pragma once

#include <gdn_cuda/kernels/gdn/chunked_mma/state_rows.cuh>
#include <gdn_cuda/kernels/recurrence/channel_decay.cuh>
#include <gdn_cuda/kernels/recurrence/raw_gates.cuh>

namespace gdn_cuda::gdn {

template <class Owner, int kHeadK>
struct KdaByToken {
    static constexpr int kRows = 4;
    using Io = typename Owner::Io;

    Owner& own;
    KdaTokenRows<kHeadK>& rows;
    const GdnCall& call = own.call;

    // Outputs overwrite values.
    __device__ __forceinline__ void run(int chunk) const {
        __syncwarp();  // the rows are where the warp has read its inverse
#pragma unroll 1
        for (int group = 0; group < kMmaWarpRows / kRows; ++group) {
            own.refresh();
            for_each_pair(group, [](float2& in_shared, float& x, float& y) { in_shared = {x, y}; });
            clear_past_dk();
#pragma unroll 1
            for (int token = 0; token < own.tokens_in(chunk); ++token)
                advance(group, token, chunk * i64{kKdaMmaTokens} + token);
            own.refresh();
            for_each_pair(group, [](const float2& in_shared, float& x, float& y) {
                x = in_shared.x;
                y = in_shared.y;
            });
        }
    }

  private:
    // Rows 2 group and + 1 of both halves of the warp's 16.
    template <class Visit>
    __device__ __forceinline__ void for_each_pair(int group, Visit&& visit) const {
        if (own.g / 2 == group)
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int n = 0; n < kHeadK / 8; ++n)
                    visit(*reinterpret_cast<float2*>(&rows.at[2 * half + own.g % 2][8 * n + 2 * own.t]), own.state[n][2 * half],
                          own.state[n][2 * half + 1]);
        __syncwarp();
    }
    // Where an infinity was multiplied by a key of 0.
    __device__ __forceinline__ void clear_past_dk() const {
#pragma unroll 1
        for (int r = 0; r < kRows; ++r)
#pragma unroll 1
            for (int c = call.dk + own.lane; c < kHeadK; c += 32) rows.at[r][c] = 0.f;
        __syncwarp();
    }
    __device__ __forceinline__ float decay_of(i64 token, int c) const {
        float gate = load_float(call.gate.values, own.work.gate + token * call.gate.token + c), decay = 1.f;
        if (call.dt_bias.data != nullptr) gate += load_float(call.dt_bias, own.work.head * call.channels.bias_head + c);
        const float A_log = call.A_log.data != nullptr ? load_float(call.A_log, own.work.head) : 0.f;
        with_channel_gate(call.channels.form,
                          [&]<ChannelGate kForm>() { decay = ChannelDecay<kForm>(A_log, call.channels.lower_bound)(gate); });
        return decay;
    }
    __device__ __forceinline__ float norm_of(float square) const {
        return call.qk_norm ? rsqrtf(group_sum<32>(square) + kNormEpsilon) : 1.f;
    }
    // A lane has every 32nd channel.
    __device__ __forceinline__ void advance(int group, int token, i64 at) const {
        const Io* const key = static_cast<const Io*>(own.work.key) + at * call.key.token;
        const Io* const query = static_cast<const Io*>(own.work.query) + at * call.query.token;
        float predicted[kRows] = {}, outputs[kRows] = {}, change[kRows], square = 0.f;
#pragma unroll 1
        for (int c = own.lane; c < call.dk; c += 32) {
            const float k = to_float(key[c]), decay = decay_of(at, c);
            square = fmaf(k, k, square);
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                rows.at[r][c] = decayed(rows.at[r][c], decay);
                predicted[r] = fmaf(rows.at[r][c], k, predicted[r]);
            }
        }
        RawGates gates;
        gates.load_beta(call, own.work.beta + at * call.beta.token);
        const float key_norm = norm_of(square), beta = gates.beta_of(call, call.forms);
#pragma unroll
        for (int r = 0; r < kRows; ++r)
            change[r] = key_norm * beta * (to_float(value_at(group, token, r)) - key_norm * group_sum<32>(predicted[r]));
        square = 0.f;
#pragma unroll 1
        for (int c = own.lane; c < call.dk; c += 32) {
            const float k = to_float(key[c]), q = to_float(query[c]);
            square = fmaf(q, q, square);
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                rows.at[r][c] = fmaf(change[r], k, rows.at[r][c]);
                outputs[r] = fmaf(rows.at[r][c], q, outputs[r]);
            }
        }
        const float query_norm = call.scale * norm_of(square);
        __syncwarp();  // every lane has read the values
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            const float output = query_norm * group_sum<32>(outputs[r]);
            if (own.lane == 0) value_at(group, token, r) = from_float<Io>(output);
        }
        __syncwarp();
    }
    __device__ __forceinline__ Io& value_at(int group, int token, int r) const {
        return static_cast<Io*>(__cvta_shared_to_generic(own.values() + own.block_vector(token, r / 2)))[2 * group + r % 2];
    }
};

template <class Owner, int kHeadK>
__device__ __forceinline__ void advance_by_token(Owner& own, KdaTokenRows<kHeadK>& rows, int chunk) {
    KdaByToken<Owner, kHeadK>{own, rows}.run(chunk);
}

}  // namespace gdn_cuda::gdn
