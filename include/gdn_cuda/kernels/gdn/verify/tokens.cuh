// The tokens of a block of gdn/verify: loads of queries, keys, gates and values, and stores of outputs.
#pragma once

#include <gdn_cuda/kernels/gdn/recurrent/tokens.cuh>
#include <gdn_cuda/kernels/gdn/verify/plan.cuh>

namespace gdn_cuda::gdn {

// Where a block works: some rows of one head of one sequence.
struct VerifyPlace {
    int sequence, head, first_row, rows;

    template <class Io>
    __device__ __forceinline__ Io* row_of(const Rows& tensor, int token, int tensor_head) const {
        return static_cast<Io*>(tensor.data) + sequence * tensor.batch + token * tensor.token + tensor_head * tensor.head;
    }
};

// A token whose loads are in flight, in a group of as many lanes as StateLayout has for a row.
template <VerifyConfig kConfig>
struct VerifyToken {
    using Io = Storage<kConfig.io>;
    static constexpr StateLayout kLayout = kConfig.layout();
    static constexpr int kAtOnce = kConfig.threads() / kLayout.lanes;  // tokens that a block loads at once

    RowSlice<Io, kLayout, true, true> query, key;
    RawGates gates;

    __device__ __forceinline__ void load(const GdnCall& call, const VerifyPlace& place, int first) {
        const int t = min(first + static_cast<int>(threadIdx.x) / kLayout.lanes, call.tokens - 1);
        const int lane = threadIdx.x % kLayout.lanes;
        const int key_head = static_cast<unsigned>(place.head) / static_cast<unsigned>(call.heads_per_key);
        query.load(place.row_of<Io>(call.query, t, key_head), lane, kConfig.head_k);
        key.load(place.row_of<Io>(call.key, t, key_head), lane, kConfig.head_k);
        if constexpr (kConfig.channel_gates)
            gates.load_beta(call, scalar_offset(call.beta, place.sequence, t, place.head));
        else
            gates.load(call, scalar_offset(call.gate, place.sequence, t, place.head),
                       scalar_offset(call.beta, place.sequence, t, place.head), place.head, call.forms);
    }

    __device__ __forceinline__ void finish(VerifySharedPlan<kConfig>& shared, const GdnCall& call, const VerifyPlace& place,
                                           int first) const {
        const int t = first + threadIdx.x / kLayout.lanes, lane = threadIdx.x % kLayout.lanes;
        TokenScalars scalars;
        if constexpr (kConfig.channel_gates)
            scalars.beta = gates.beta_of(call, call.forms), scalars.decay = 1.f;
        else
            gates.finish(call, call.forms, scalars);
        set_products<kLayout>(scalars, query, key, call.scale, call.qk_norm);
        if (t >= call.tokens) return;
        store(shared.query[t].elements, query, lane);
        store(shared.key[t].elements, key, lane);
        if (lane != 0) return;
        shared.scalars[t] = scalars;
        const StepPlace kept = step_place(call, place.sequence, 0, t);
        shared.kept[t] = kConfig.state == DType::i8 ? kept.slot : kept.offset(call.steps);
    }

  private:
    __device__ __forceinline__ static void store(float* row, const RowSlice<Io, kLayout, true, true>& slice, int lane) {
        constexpr int kUnit = 4;
#pragma unroll
        for (int i = 0; i < kLayout.per_lane; i += kUnit) {
            Vector<float, kUnit, true> unit;
#pragma unroll
            for (int j = 0; j < kUnit; ++j) unit.items[j] = slice[i + j];
            unit.store(row + slice.column(i / kLayout.vector, lane) + i % kLayout.vector);
        }
    }
};

// Copies a block's values to shared memory, and its outputs from there. A thread copies one row of several tokens.
template <VerifyConfig kConfig>
struct VerifyValues {
    using Io = Storage<kConfig.io>;
    static constexpr int kRows = kConfig.rows_per_thread == 1 ? kConfig.rows_per_step() : VerifyConfig::kMostRows;
    static constexpr int kAtOnce = kConfig.threads() / kRows;               // tokens that a block copies at once
    static constexpr int kInFlight = kConfig.rows_per_thread == 1 ? 1 : 4;  // loads of a thread

    __device__ __forceinline__ static void load(VerifySharedPlan<kConfig>& shared, const GdnCall& call,
                                                const VerifyPlace& place) {
        const int row = threadIdx.x % kRows;
        if (row >= place.rows) return;
        const Io* values = place.row_of<Io>(call.value, 0, place.head) + place.first_row + row;
#pragma unroll 1
        for (int first = threadIdx.x / kRows; first < call.tokens; first += kInFlight * kAtOnce) {
            unsigned short value[kInFlight];
            const auto token = [&](int i) { return first + i * kAtOnce; };
#pragma unroll
            for (int i = 0; i < kInFlight; ++i)
                if (token(i) < call.tokens)
                    value[i] = *reinterpret_cast<const unsigned short*>(values + token(i) * call.value.token);
#pragma unroll
            for (int i = 0; i < kInFlight; ++i)
                if (token(i) < call.tokens) shared.value[token(i)][row] = value[i];
        }
    }
    __device__ __forceinline__ static void store(const VerifySharedPlan<kConfig>& shared, const GdnCall& call,
                                                 const VerifyPlace& place) {
        const int row = threadIdx.x % kRows;
        if (row >= place.rows) return;
        Io* outputs = place.row_of<Io>(call.output, 0, place.head) + place.first_row + row;
#pragma unroll 1
        for (int t = threadIdx.x / kRows; t < call.tokens; t += kAtOnce)
            *reinterpret_cast<unsigned short*>(outputs + t * call.output.token) = shared.value[t][row];
    }
};

}  // namespace gdn_cuda::gdn
