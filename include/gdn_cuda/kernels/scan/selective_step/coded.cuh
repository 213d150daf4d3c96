// Rows of int8 states with one Ā each, as tied.cuh has those of other states: codes are loaded, advanced by one token, and
// rounded again with new scales.
#pragma once

#include <gdn_cuda/kernels/common/opaque.cuh>
#include <gdn_cuda/kernels/recurrence/state_codes.cuh>
#include <gdn_cuda/kernels/scan/selective_step/tied.cuh>

namespace gdn_cuda::scan {

// A thread's rows, with the members of TiedRows.
template <TiedStepConfig kConfig>
struct CodedRows {
    static constexpr int kLanes = kConfig.lanes(), kStages = kConfig.stages(), kElements = kConfig.row().elements();
    static constexpr int kVectors = kConfig.row().vectors, kVector = kConfig.row().vector;
    static constexpr i64 kStepElements = kConfig.rows_per_step() * kConfig.columns;
    using Slice = gdn::CodeSlice<gdn::StateLayout(kConfig.columns, DType::i8), true, true>;
    static_assert(Slice::kVectors == kVectors && Slice::kVector == kVector);

    TiedStepSharedPlan<kConfig>& ring;
    int thread, first, end;
    gdn::CodedStates from;  // the thread's slice of its first row

    // `rows`: row 0 of the state.
    __device__ __forceinline__ CodedRows(TiedStepSharedPlan<kConfig>& ring, const gdn::CodedStates& rows, int thread, int first,
                                         int end)
        : ring(ring), thread(thread), first(first), end(end), from(slice(rows + offset())) {}

    // For its first row; in elements, which are bytes.
    __device__ __forceinline__ i64 offset() const { return first * static_cast<i64>(kConfig.row_bytes()); }
    __device__ __forceinline__ gdn::CodedStates slice(const gdn::CodedStates& row) const {
        const int lane = thread % kLanes;
        return {row.codes + Slice::column(0, lane), row.scales + Slice::group(0, lane)};
    }

    __device__ __forceinline__ bool exists(int step) const { return first + step * kConfig.rows_per_step() < end; }
    // `row`: the slice of the step's row.
    __device__ __forceinline__ void fetch(int step, int stage, const gdn::CodedStates& row) const {
        if (exists(step))
#pragma unroll
            for (int v = 0; v < kVectors; ++v) {
                cp_async_16(ring.state[stage][v][thread].bytes, row.codes + v * kLanes * kVector);
                cp_async<4>(&ring.scales[stage][v][thread], row.scales + v * kLanes * kVector / gdn::kCodeGroup);
            }
        cp_async_fence();
    }
    __device__ __forceinline__ void start() const {
#pragma unroll 1
        for (int step = 0; step < kStages; ++step) fetch(step, step, from + step * kStepElements);
    }
    // As TiedRows has it; `to`: the thread's first row in the state to store.
    __device__ __forceinline__ float advance(int first_step, int count, const Decay<float>& own, float own_input,
                                             const float (&B)[kElements], const float (&C)[kElements],
                                             const gdn::CodedStates& to) const {
        const int lane = thread % kLanes;
        const bool stores_scale = lane % Slice::kLanesPerGroup == 0;
        const unsigned exponent = gdn::kCodeExponent + (static_cast<unsigned>(thread) >> 16);
        gdn::CodedStates next = from + (first_step + kStages) * kStepElements, at = slice(to) + first_step * kStepElements;
        float result = 0.f;
#pragma unroll 1
        for (int n = 0; n < count; ++n, next = next + kStepElements, at = at + kStepElements) {
            const int step = first_step + n, stage = step % kStages;
            const float rate = __shfl_sync(0xffffffffu, own.rate, n, kLanes);
            const float input = __shfl_sync(0xffffffffu, own_input, n, kLanes);
            cp_async_wait<kStages - 1>();
            Slice row;
            row.clear();
            if (exists(step) && rate != 0.f) {
#pragma unroll
                for (int v = 0; v < kVectors; ++v) {
                    row.vectors[v].load(reinterpret_cast<const signed char*>(ring.state[stage][v][thread].bytes));
                    row.scales[v] = ring.scales[stage][v][thread];
                }
            }
            fetch(step + kStages, stage, next);
            float x[kElements], sum = 0.f;
#pragma unroll
            for (int i = 0; i < kElements; ++i) {
                x[i] = fmaf(row.scales[i / kVector] * rate, row.code(i, exponent), input * B[i]);
                sum = add_real_product(sum, C[i], x[i]);
            }
            const float whole = tied_row_sum<kLanes>(sum);  // before x is rounded, which takes its registers
            if (lane == n) result = whole;
            if (!to) continue;
            row.encode(x);
            if (exists(step)) {
#pragma unroll
                for (int v = 0; v < kVectors; ++v) {
                    row.vectors[v].store_global(at.codes + v * kLanes * kVector);
                    if (stores_scale) at.scales[v * kLanes * kVector / gdn::kCodeGroup] = row.scales[v];
                }
            }
        }
        return result;
    }
};

// ---- Rows of any dtype

// `State`: a state, or a row of it, which are offset by bytes; these are the codes of int8 states.
template <TiedStepConfig kConfig, bool kCoded = kConfig.coded()>
struct StepRowsOf {
    using Rows = TiedRows<kConfig>;
    using State = char*;
};
template <TiedStepConfig kConfig>
struct StepRowsOf<kConfig, true> {
    using Rows = CodedRows<kConfig>;
    using State = gdn::CodedStates;
};
template <TiedStepConfig kConfig>
using StepRows = typename StepRowsOf<kConfig>::Rows;
template <TiedStepConfig kConfig>
using StateInPool = typename StepRowsOf<kConfig>::State;

// `args` has the pool.
template <TiedStepConfig kConfig>
__device__ __forceinline__ StateInPool<kConfig> state_in_pool(const auto& args, i64 slot) {
    if constexpr (kConfig.coded())
        return gdn::state_pointer<signed char>(args.pool, slot * args.pool_slot, args.scales, slot * args.scales_slot);
    else
        return static_cast<char*>(args.pool) + slot * args.pool_slot * bytes_of(kConfig.state);
}

}  // namespace gdn_cuda::scan
