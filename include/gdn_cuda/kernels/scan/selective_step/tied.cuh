// Rows of states with one Ā each, for scan/selective_step_tied and layers/mamba2_decode_layer: loaded, advanced by one token
// and stored, all threads of a block in steps.
#pragma once

#include <gdn_cuda/kernels/common/cp_async_ptx.cuh>
#include <gdn_cuda/kernels/scan/selective_step/recurrence.cuh>
#include <gdn_cuda/kernels/scan/selective_step/tied_plan.cuh>

namespace gdn_cuda::scan {

// The column of a lane's vector.
template <TiedStepConfig kConfig>
__device__ __forceinline__ int tied_column(int vector, int lane) {
    return (vector * kConfig.lanes() + lane) * kConfig.row().vector;
}

// The sum over a row's lanes, in the order of row_sum.
template <int kLanes>
__device__ __forceinline__ float tied_row_sum(float part) {
    const float pair = part + __shfl_xor_sync(0xffffffffu, part, 1);
    const float four = pair + __shfl_xor_sync(0xffffffffu, pair, 2);
    if constexpr (kLanes == 8) return four + __shfl_xor_sync(0xffffffffu, four, 4) + 0.f;  // never −0, as there
    float sum = 0.f;
#pragma unroll
    for (int lane = 0; lane < kLanes; lane += 4) sum += __shfl_sync(0xffffffffu, four, lane, kLanes);
    return sum;
}

// A thread's rows, of fewer than 2^31 bytes of states: `first`, and every rows_per_step()-th one after it before `end`.
template <TiedStepConfig kConfig>
struct TiedRows {
    static constexpr SelectiveStepConfig kRow = kConfig.row();
    static constexpr int kLanes = kConfig.lanes(), kStages = kConfig.stages(), kElements = kRow.elements();
    static constexpr int kStepBytes = kConfig.rows_per_step() * kConfig.row_bytes();
    using Types = StepTypes<kRow>;

    TiedStepSharedPlan<kConfig>& ring;
    int thread, first, end;
    const char* from;  // the thread's slice of its first row

    // `rows`: row 0 of the state.
    __device__ __forceinline__ TiedRows(TiedStepSharedPlan<kConfig>& ring, const char* rows, int thread, int first, int end)
        : ring(ring), thread(thread), first(first), end(end), from(rows + offset()) {}

    // Of the thread's slice of its first row.
    __device__ __forceinline__ i64 offset() const {
        return first * static_cast<i64>(kConfig.row_bytes()) + thread % kLanes * 16;
    }

    __device__ __forceinline__ bool exists(int step) const { return first + step * kConfig.rows_per_step() < end; }
    __device__ __forceinline__ void fetch(int step) const {
        if (exists(step))
#pragma unroll
            for (int v = 0; v < kRow.vectors; ++v)
                cp_async_16(ring.state[step % kStages][v][thread].bytes, from + step * kStepBytes + v * kLanes * 16);
        cp_async_fence();
    }
    __device__ __forceinline__ void start() const {
#pragma unroll 1
        for (int step = 0; step < kStages; ++step) fetch(step);
    }
    // Takes `count` steps from `first_step` on. Lane j has the decay and the input δ u of the row of step first_step + j, and
    // gets its Σ C x. `to`: the thread's slice of the first row in the state to store; nullptr: none.
    __device__ __forceinline__ float advance(int first_step, int count, const Decay<float>& own, float own_input,
                                             const float (&B)[kElements], const float (&C)[kElements], char* to) const {
        const int lane = thread % kLanes;
        // CompiledStep has no offsets for 16-bit states.
        const unsigned offsets =
            kConfig.state == DType::f32 ? __ballot_sync(0xffffffffu, own.offset) >> (thread % 32 - lane) : 0;
        float result = 0.f;
#pragma unroll 1
        for (int n = 0; n < count; ++n) {
            const int step = first_step + n;
            const Decay<float> decay{__shfl_sync(0xffffffffu, own.rate, n, kLanes), (offsets >> n & 1) != 0};
            const float input = __shfl_sync(0xffffffffu, own_input, n, kLanes);
            cp_async_wait<kStages - 1>();
            typename Types::Vector vectors[kRow.vectors];
#pragma unroll
            for (int v = 0; v < kRow.vectors; ++v) {
                if (exists(step) && !resets(decay))
                    vectors[v].load(
                        reinterpret_cast<const typename Types::Element*>(ring.state[step % kStages][v][thread].bytes));
                else
                    vectors[v].clear();
            }
            fetch(step + kStages);
            float x[kElements], sum = 0.f;
#pragma unroll
            for (int i = 0; i < kElements; ++i) {
                x[i] = advanced(Types::at(vectors[i / kRow.vector], i % kRow.vector), decay, input * B[i]);
                sum = add_real_product(sum, C[i], x[i]);
            }
            if (exists(step) && to != nullptr) {
#pragma unroll
                for (int v = 0; v < kRow.vectors; ++v) {
#pragma unroll
                    for (int j = 0; j < kRow.vector; ++j) Types::set(vectors[v], j, x[v * kRow.vector + j]);
                    vectors[v].store_global(
                        reinterpret_cast<typename Types::Element*>(to + step * kStepBytes + v * kLanes * 16));
                }
            }
            const float whole = tied_row_sum<kLanes>(sum);
            if (lane == n) result = whole;
        }
        return result;
    }
};

}  // namespace gdn_cuda::scan
