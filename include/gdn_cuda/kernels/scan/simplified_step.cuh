// scan/simplified_step: one token of a diagonal complex scan (S5, LRU) between its two products, elementwise over (sequences,
// P).
//
//     x <- Ā x + B̄ (B u)        halves = scale (Re x, −Im x), as Re(C x) = Σ Re C Re x − Im C Im x
//
// A thread has one state element. No shared memory.
//
// Bound: memory, 32 bytes a state element; for the usual small batches, the launch.
#pragma once

#include <gdn_cuda/kernels/scan/exact_step.cuh>
#include <gdn_cuda/kernels/scan/simplified_step_plan.cuh>

namespace gdn_cuda::scan {

__device__ __forceinline__ ExactStep<Complex> simplified_transition(Discretization discretization, float delta, float delta_a,
                                                                    const Complex& A) {
    switch (discretization) {
        case Discretization::bilinear:
            return exact_step<Discretization::bilinear>(delta, delta_a, A);
        case Discretization::zoh:
            return exact_step<Discretization::zoh>(delta, delta_a, A);
        default:
            return exact_step<Discretization::dirac>(delta, delta_a, A);
    }
}

template <SimplifiedStepConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads) simplified_step(const __grid_constant__ SimplifiedStepArgs args) {
    const i64 at = static_cast<i64>(blockIdx.x) * kConfig.threads + threadIdx.x;
    if (at >= args.sequences * args.states) return;
    const i64 sequence = at / args.states, p = at - sequence * args.states;
    const auto step_size = [&](const SimplifiedStepArgs::Steps& x) { return x.data[sequence * x.sequence + p * x.p]; };
    const float delta = step_size(args.delta), delta_a = args.delta_a.data != nullptr ? step_size(args.delta_a) : delta;
    const Complex A = static_cast<const Complex*>(args.A)[p * args.A_p], drive = static_cast<const Complex*>(args.drive)[at];
    Complex& state = static_cast<Complex*>(args.state)[sequence * args.state_sequence + p * args.state_p];
    const ExactStep<Complex> step = simplified_transition(args.discretization, delta, delta_a, A);
    const Complex x = advanced(state, step.decay, step.gain * drive);
    state = x;
    args.halves[2 * at] = args.scale * x.re;
    args.halves[2 * at + 1] = -args.scale * x.im;
}

}  // namespace gdn_cuda::scan
