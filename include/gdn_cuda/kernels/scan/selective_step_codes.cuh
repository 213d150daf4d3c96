// scan/selective_step_codes: scan/selective_step_tied's step for int8 states of many sequences, in place: C x by integer tensor
// products before the decay, and the update in pairs of fp16 (recurrence/code_step.cuh).
//
//     y = e^(δ A) C x + δ u (C B) + D u, times silu(z)        x <- e^(δ A) x + δ u B
//
// Measured on an H200, 128 heads of 64: 176 us for 256 sequences, 82 % of what its bytes take at 4.2 TB/s, and 51 us for 64,
// 70 %. Bound: instructions, 11.6 an element, and bytes, which overlap in part (docs/benchmarks/scan.md).
#pragma once

#include <gdn_cuda/kernels/recurrence/code_step.cuh>
#include <gdn_cuda/kernels/scan/discretization.cuh>
#include <gdn_cuda/kernels/scan/selective_step/codes_plan.cuh>

namespace gdn_cuda::scan {

// beta is δ.
struct SelectiveRule {
    RawElement delta, bias, skip;
    float A, D;

    __device__ __forceinline__ void load(const SelectiveCodesArgs& args, int sequence, int head) {
        const auto load_one = [&](RawElement& to, const SelectiveCodesArgs::PerHead& from) {
            if (from.values.data != nullptr)
                to.load(static_cast<const char*>(from.values.data) + (sequence * from.sequence + head * from.head),
                        from.values.type == DType::f32);
        };
        load_one(delta, args.delta), load_one(bias, args.bias), load_one(skip, args.D);
        A = args.A[head * args.A_head];
    }
    __device__ __forceinline__ void finish(const SelectiveCodesArgs& args, gdn::TokenScalars& to) {
        const float sum = delta.to_float(args.delta.values.type) + bias.to_float(args.bias.values.type),
                    step = args.softplus ? softplus_fast(sum) : sum;
        to.decay = exp2_fast(step * kLog2e * A);
        to.beta = args.is_dirac ? 1.f : step;
        D = skip.to_float(args.D.values.type);
    }
    __device__ __forceinline__ float correction(const gdn::TokenScalars& token, float value, float) const {
        return token.beta * value;
    }
    __device__ __forceinline__ static const SelectiveCodesArgs::Heads& gates(const SelectiveCodesArgs& args) { return args.z; }
    __device__ __forceinline__ float output(const SelectiveCodesArgs& args, float y, float value, const auto& gate) const {
        if (args.D.values.data != nullptr) y = fmaf(D, value, y);
        return args.z.data != nullptr ? y * silu_fast(gate()) : y;
    }
};

template <CodeStepConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.blocks)
    selective_step_codes(const __grid_constant__ SelectiveCodesArgs args) {
    gdn::step_codes<kConfig, SelectiveRule>(args);
}

}  // namespace gdn_cuda::scan
