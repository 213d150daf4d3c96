// scan/selective_step: the states move on over the items at work.
#pragma once

#include <gdn_cuda/kernels/scan/selective_step_states.cuh>

namespace gdn_cuda::scan {

// Hides from the compiler that a number does not change: it would compute before the loop what a discretization makes of A, and
// keep that in registers too.
__device__ __forceinline__ float kept_in_loop(float x) {
    asm volatile("" : "+f"(x));
    return x;
}
__device__ __forceinline__ Complex kept_in_loop(const Complex& x) {
    return {kept_in_loop(x.re), kept_in_loop(x.im)};
}

template <SelectiveStepConfig kConfig, Discretization kKind>
__device__ __forceinline__ auto transition(float delta, float delta_a, const typename StepTypes<kConfig>::Number& A) {
    if constexpr (bytes_of(kConfig.state) == 2 && (kKind == Discretization::mamba || kKind == Discretization::dirac)) {
        // The state's rounding hides that of Ā; where it has 16 bits, instructions count.
        return ExactStep<float>{{exp2_fast(delta_a * kLog2e * A), false}, kKind == Discretization::mamba ? delta : 1.f};
    } else {
        return exact_step<kKind>(delta, delta_a, A);
    }
}

// All items at work: their states move on, and each lane's part of Σ C x goes to shared memory.
template <SelectiveStepConfig kConfig, Discretization kKind, bool kTied>
__device__ __forceinline__ void advance_as(SelectiveStepSharedPlan<kConfig>& shared, const SelectiveStepArgs& args,
                                           const StepLane<kConfig>& lane, const StepItems& items,
                                           const typename StepTypes<kConfig>::Number (&A)[kConfig.elements()],
                                           typename StepTypes<kConfig>::Number (&state)[kConfig.elements()]) {
    using Types = StepTypes<kConfig>;
    const i64 offset = lane.state_offset(args);
    const int loaded = items.one_token ? items.count : items.first == 0 ? 1 : 0;
    auto* next = shared.items;
#pragma unroll 1
    for (int item = 0; item < items.count; ++item) {
        auto& at = *next++;
        if (item < loaded) load_state<kConfig>(at, lane, offset, args.columns, state);
        const auto row = at.row[lane.in_block];
        ExactStep<typename Types::Number> by;
        if (kTied) by = transition<kConfig, kKind>(row.delta, row.delta_a, kept_in_loop(A[0]));
        float sum = 0.f;
#pragma unroll
        for (int v = 0; v < kConfig.vectors; ++v) {
            const int column = lane.column(v);
            if (v > 0 && column >= args.columns) break;
            typename Types::Wide B, C;
            B.load(at.B + column * kConfig.parts());
            C.load(at.C + column * kConfig.parts());
#pragma unroll
            for (int j = 0; j < kConfig.vector; ++j) {
                typename Types::Number& x = state[v * kConfig.vector + j];
                if (!kTied) by = transition<kConfig, kKind>(row.delta, row.delta_a, kept_in_loop(A[v * kConfig.vector + j]));
                x = advanced(x, by.decay, by.gain * row.u * Types::at(B, j));
                sum = add_real_product(sum, Types::at(C, j), x);
            }
        }
        at.sum[threadIdx.x] = sum;
        store_state<kConfig>(at.to, lane, offset, args.columns, state);
        fetch_state<kConfig>(at, lane, at.later, offset, args.columns);
    }
}

template <SelectiveStepConfig kConfig>
__device__ __forceinline__ void advance(SelectiveStepSharedPlan<kConfig>& shared, const SelectiveStepArgs& args,
                                        const StepLane<kConfig>& lane, const StepItems& items,
                                        const typename StepTypes<kConfig>::Number (&A)[kConfig.elements()],
                                        typename StepTypes<kConfig>::Number (&state)[kConfig.elements()]) {
    if (!lane.works(args.columns)) {
#pragma unroll 1
        for (int item = 0; item < items.count; ++item) shared.items[item].sum[threadIdx.x] = 0.f;
        return;
    }
    const auto as = [&]<Discretization kKind>() {
        if (kKind == Discretization::s7 || args.tied)
            advance_as<kConfig, kKind, true>(shared, args, lane, items, A, state);
        else
            advance_as<kConfig, kKind, false>(shared, args, lane, items, A, state);
    };
    switch (args.discretization) {
        case Discretization::mamba:
            return as.template operator()<Discretization::mamba>();
        case Discretization::zoh:
            return as.template operator()<Discretization::zoh>();
        case Discretization::bilinear:
            return as.template operator()<Discretization::bilinear>();
        case Discretization::dirac:
            return as.template operator()<Discretization::dirac>();
        case Discretization::s7:
            if constexpr (!is_complex(kConfig.state)) as.template operator()<Discretization::s7>();
            return;
        case Discretization::rglru:
            if constexpr (!is_complex(kConfig.state)) as.template operator()<Discretization::rglru>();
            return;
    }
}

}  // namespace gdn_cuda::scan
