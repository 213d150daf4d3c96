// Loads a batch of tokens into shared memory for all rows of a block, applies one of them to rows, and stores outputs.
#pragma once

#include <gdn_cuda/kernels/gdn/recurrent/plan.cuh>
#include <gdn_cuda/kernels/recurrence/channel_loads.cuh>
#include <gdn_cuda/kernels/recurrence/raw_gates.cuh>
#include <gdn_cuda/kernels/recurrence/state_row.cuh>
#include <gdn_cuda/kernels/recurrence/states.cuh>

namespace gdn_cuda::gdn {

// Loads tokens [first, first + count) of a sequence: keys and queries (unconverted, zero past dk), values of this block's rows,
// and scalars, which one group of lanes per token computes; with gates of channels, decays too. Returns whether one is 0.
template <auto kConfig>
__device__ __forceinline__ bool load_tokens(TokenBatch<kConfig>& shared, const GdnCall& call, int sequence, i64 first,
                                            int count, int head, int first_row) {
    using Io = Storage<kConfig.io>;
    constexpr StateLayout kLayout = kConfig.layout();
    constexpr int kPerVector = 8, kVectors = kConfig.head_k / kPerVector, kGroups = kConfig.threads() / kLayout.lanes;
    const int key_head = static_cast<unsigned>(head) / static_cast<unsigned>(call.heads_per_key);
    const auto row_of = [&](const Rows& rows, int t, int h) {
        return static_cast<const Io*>(rows.data) + sequence * rows.batch + (first + t) * rows.token + h * rows.head;
    };
#pragma unroll 1
    for (int i = threadIdx.x; i < count * kVectors; i += kConfig.threads()) {
        const int t = i / kVectors, at = i % kVectors * kPerVector;
        Vector<Io, kPerVector, kConfig.aligned> query, key;
        const bool inside = kConfig.exact_k || at < call.dk;
        inside ? query.load(row_of(call.query, t, key_head) + at) : query.clear();
        inside ? key.load(row_of(call.key, t, key_head) + at) : key.clear();
        query.store(reinterpret_cast<Io*>(shared.query[t].bytes) + at);
        key.store(reinterpret_cast<Io*>(shared.key[t].bytes) + at);
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < count * kConfig.rows_per_block(); i += kConfig.threads()) {
        const int t = i / kConfig.rows_per_block(), row = i % kConfig.rows_per_block();
        shared.value[t][row] = first_row + row < call.values ? to_float(row_of(call.value, t, head)[first_row + row]) : 0.f;
    }
    bool may_reset = false;
    if constexpr (kConfig.channel_gates) {
        ChannelLoads<kConfig.head_k, kConfig.threads(), 4> channels(call.dk);
        const auto gate_at = [&](int t) { return scalar_offset(call.gate, sequence, first + t, head); };
        channels.load(call, head, 0, count, gate_at);
        may_reset = channels.finish(call, head, count, gate_at, [&](int t) { return shared.decays[t]; });
    }
    __syncthreads();
#pragma unroll 1
    for (int batch = 0; batch < count; batch += kGroups) {  // all lanes of a warp: sums use shuffles
        const int t = min(batch + static_cast<int>(threadIdx.x) / kLayout.lanes, count - 1);
        RawGates gates;
        if constexpr (kConfig.channel_gates)
            gates.load_beta(call, scalar_offset(call.beta, sequence, first + t, head));
        else
            gates.load(call, scalar_offset(call.gate, sequence, first + t, head),
                       scalar_offset(call.beta, sequence, first + t, head), head, call.forms);
        RowSlice<Io, kLayout, true, true> query, key;
        query.load(reinterpret_cast<const Io*>(shared.query[t].bytes), threadIdx.x % kLayout.lanes, kConfig.head_k);
        key.load(reinterpret_cast<const Io*>(shared.key[t].bytes), threadIdx.x % kLayout.lanes, kConfig.head_k);
        TokenScalars scalars;
        if constexpr (kConfig.channel_gates)
            scalars.beta = gates.beta_of(call, call.forms), scalars.decay = 1.f;
        else
            gates.finish(call, call.forms, scalars);
        set_products<kLayout>(scalars, query, key, call.scale, call.qk_norm);
        shared.scalars[t] = scalars;
    }
    if constexpr (kConfig.channel_gates) return __syncthreads_or(may_reset);
    __syncthreads();
    return false;
}

// Stores the batch's outputs, which overwrote its values.
template <auto kConfig>
__device__ __forceinline__ void store_outputs(const TokenBatch<kConfig>& shared, const GdnCall& call, int sequence, i64 first,
                                              int count, int head, int first_row) {
    using Io = Storage<kConfig.io>;
    Io* outputs = static_cast<Io*>(call.output.data) + sequence * call.output.batch + first * call.output.token +
                  head * call.output.head + first_row;
#pragma unroll 1
    for (int i = threadIdx.x; i < count * kConfig.rows_per_block(); i += kConfig.threads()) {
        const int t = i / kConfig.rows_per_block(), row = i % kConfig.rows_per_block();
        if (first_row + row < call.outputs) outputs[t * call.output.token + row] = from_float<Io>(shared.value[t][row]);
    }
}

// Applies one token to a group's kRows rows: each row's output overwrites its value. `may_reset`: with gates of channels,
// whether a decay may be 0.
template <auto kConfig, int kRows, class RowOf>
__device__ __forceinline__ void advance_rows(TokenBatch<kConfig>& shared, int t,
                                             float (&rows)[kRows][kConfig.layout().per_lane], int lane, bool may_reset,
                                             RowOf&& row_of) {
    using Io = Storage<kConfig.io>;
    constexpr StateLayout kLayout = kConfig.layout();
    RowSlice<Io, kLayout, true, true> query, key;
    query.load(reinterpret_cast<const Io*>(shared.query[t].bytes), lane, kConfig.head_k);
    key.load(reinterpret_cast<const Io*>(shared.key[t].bytes), lane, kConfig.head_k);
    TokenScalars scalars = shared.scalars[t];
    if constexpr (kConfig.channel_gates) {
        scalars.decay = 1.f;  // a constant: columns decay before `advance`
        RowSlice<float, kLayout, true, true> decays;
        decays.load(shared.decays[t], lane, kConfig.head_k);
#pragma unroll
        for (int r = 0; r < kRows; ++r)
#pragma unroll
            for (int i = 0; i < kLayout.per_lane; ++i)
                rows[r][i] = may_reset ? decayed(rows[r][i], decays[i]) : decays[i] * rows[r][i];
    } else if (resets(scalars)) {
#pragma unroll
        for (auto& row : rows)
#pragma unroll
            for (float& x : row) x = 0.f;
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
        const float out = advance<kLayout>(rows[r], query, key, scalars, shared.value[t][row_of(r)]);
        __syncwarp();
        if (lane == 0) shared.value[t][row_of(r)] = out;
    }
}

}  // namespace gdn_cuda::gdn
