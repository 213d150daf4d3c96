// scan/selective_step: the recurrence, over the current items.
#pragma once

#include <gdn_cuda/kernels/scan/selective_step/states.cuh>

namespace gdn_cuda::scan {

// Hides from the compiler that a value is constant in the loop. Otherwise it would compute what a discretization needs of A
// before the loop, and keep that in registers too.
__device__ __forceinline__ float kept_in_loop(float x) {
    asm volatile("" : "+f"(x));
    return x;
}
__device__ __forceinline__ Complex kept_in_loop(const Complex& x) {
    return {kept_in_loop(x.re), kept_in_loop(x.im)};
}

// A step of the discretization kKind. dirac runs as mamba with δ = 1 in StepRow (row_of_token), as mamba's δ multiplies the
// input alone.
template <SelectiveStepConfig kConfig, Discretization kKind>
struct CompiledStep {
    using Number = typename StepTypes<kConfig>::Number;
    // Whether one Ā for a row that is 0 in fp32 erases the row, infinities and NaN included.
    static constexpr bool kResets = kKind == Discretization::mamba && !is_complex(kConfig.state);

    __device__ __forceinline__ ExactStep<Number> operator()(float delta, float delta_a, const Number& A) const {
        if constexpr (kKind != Discretization::mamba || is_complex(kConfig.state))
            return exact_step<kKind>(delta, delta_a, A);
        else if constexpr (bytes_of(kConfig.state) <= 2)
            // Rounding to a state of 16 bits or fewer hides the error of Ā, and instructions are the bound.
            return {{exp2_fast(delta_a * kLog2e * A), false}, delta};
        else
            return {exact_exp2(delta_a * kLog2e * A), delta};
    }
};
// A step of any other discretization, tested at run time: for rows with one Ā, where a lane computes one step for all its
// elements.
template <SelectiveStepConfig kConfig>
struct RuntimeStep {
    using Number = typename StepTypes<kConfig>::Number;
    static constexpr bool kResets = false;
    Discretization kind;

    __device__ __forceinline__ ExactStep<Number> operator()(float delta, float delta_a, const Number& A) const {
        if (kind == Discretization::zoh) return exact_step<Discretization::zoh>(delta, delta_a, A);
        if constexpr (!is_complex(kConfig.state)) {
            if (kind == Discretization::s7) return exact_step<Discretization::s7>(delta, delta_a, A);
            if (kind == Discretization::rglru) return exact_step<Discretization::rglru>(delta, delta_a, A);
        }
        return exact_step<Discretization::bilinear>(delta, delta_a, A);
    }
};

__device__ __forceinline__ bool resets(const Decay<float>& decay) {
    return !decay.offset && decay.rate == 0.f;
}

// Advances a lane's states by one token. `load_columns(v, B, C)` loads B and C of a vector. Returns the lane's Σ C x.
template <bool kTied, SelectiveStepConfig kConfig, class Step>
__device__ __forceinline__ float advance_lane(const Step& step_of, const StepRow& row, const StepLane<kConfig>& lane,
                                              int columns, const typename StepTypes<kConfig>::Number (&A)[kConfig.elements()],
                                              typename StepTypes<kConfig>::Number (&state)[kConfig.elements()],
                                              const auto& load_columns) {
    using Types = StepTypes<kConfig>;
    ExactStep<typename Types::Number> by;
    if (kTied) by = step_of(row.delta, row.delta_a, kept_in_loop(A[0]));
    if constexpr (kTied && Step::kResets) {
        if (resets(by.decay)) {
#pragma unroll
            for (float& x : state) x = 0.f;
        }
    }
    float sum = 0.f;
#pragma unroll
    for (int v = 0; v < kConfig.vectors; ++v) {
        if (v > 0 && lane.column(v) >= columns) break;
        typename Types::Wide B, C;
        load_columns(v, B, C);
#pragma unroll
        for (int j = 0; j < kConfig.vector; ++j) {
            typename Types::Number& x = state[v * kConfig.vector + j];
            if (!kTied) by = step_of(row.delta, row.delta_a, kept_in_loop(A[v * kConfig.vector + j]));
            x = advanced(x, by.decay, by.gain * row.u * Types::at(B, j));
            sum = add_real_product(sum, Types::at(C, j), x);
        }
    }
    return sum;
}

// The same with the row's scalars, B and C of an item in shared memory.
template <bool kTied, SelectiveStepConfig kConfig>
__device__ __forceinline__ float advance_item(const auto& step_of, const auto& item, const StepLane<kConfig>& lane, int columns,
                                              const typename StepTypes<kConfig>::Number (&A)[kConfig.elements()],
                                              typename StepTypes<kConfig>::Number (&state)[kConfig.elements()]) {
    return advance_lane<kTied, kConfig>(step_of, item.row[lane.in_block], lane, columns, A, state,
                                        [&](int v, auto& B, auto& C) {
                                            const int first = lane.column(v) * kConfig.parts();
                                            B.load(item.B + first);
                                            C.load(item.C + first);
                                        });
}

// Calls `call` with the step of the discretization, CompiledStep or RuntimeStep; its template argument is whether one step
// serves all elements of a row. kMamba: the discretization is mamba.
template <SelectiveStepConfig kConfig, bool kMamba = false>
__device__ __forceinline__ void with_step(const SelectiveStepArgs& args, const auto& call) {
    using enum Discretization;
    const Discretization kind = kMamba ? mamba : args.discretization;
    const bool is_mamba = kind == mamba || kind == dirac;
    if (args.tied && is_mamba) return call.template operator()<true>(CompiledStep<kConfig, mamba>{});
    if (args.tied || kind == s7) return call.template operator()<true>(RuntimeStep<kConfig>{kind});
    if (is_mamba) return call.template operator()<false>(CompiledStep<kConfig, mamba>{});
    if (kind == zoh) return call.template operator()<false>(CompiledStep<kConfig, zoh>{});
    if (kind == bilinear) return call.template operator()<false>(CompiledStep<kConfig, bilinear>{});
    if constexpr (!is_complex(kConfig.state)) call.template operator()<false>(CompiledStep<kConfig, rglru>{});
}

// Advances the states by the current items; each lane's Σ C x goes to shared memory.
template <SelectiveStepConfig kConfig>
__device__ __forceinline__ void advance(SelectiveStepSharedPlan<kConfig>& shared, const SelectiveStepArgs& args,
                                        const StepLane<kConfig>& lane, const StepItems& items,
                                        const typename StepTypes<kConfig>::Number (&A)[kConfig.elements()],
                                        typename StepTypes<kConfig>::Number (&state)[kConfig.elements()]) {
    if (!lane.works(args.columns)) {
#pragma unroll 1
        for (int item = 0; item < items.count; ++item) {
            shared.items[item].sum[threadIdx.x] = 0.f;
            cp_async_fence();
        }
        return;
    }
    with_step<kConfig>(args, [&]<bool kTied>(const auto& step_of) {
        const i64 offset = lane.state_offset(args);
        const int loaded = items.one_token ? items.count : items.first == 0 ? 1 : 0;
        auto* next = shared.items;
#pragma unroll 1
        for (int item = 0; item < items.count; ++item) {
            auto& at = *next++;
            cp_async_wait<kGroupsInFlight>();
            if (item < loaded) load_state<kConfig>(at, shared.from[items.in_block(item)], lane, offset, args.columns, state);
            at.sum[threadIdx.x] = advance_item<kTied>(step_of, at, lane, args.columns, A, state);
            store_state<kConfig>(at.to, lane, offset, args.columns, state);
            fetch_state<kConfig>(at, lane, at.later, offset, args.columns);
            cp_async_fence();
        }
    });
}

}  // namespace gdn_cuda::scan
