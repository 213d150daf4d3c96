// gdn/decode_codes: gdn/decode's step for int8 states of many sequences, one gate a head (recurrence/code_step.cuh).
//
// Measured on an H200, 16/32 heads of 128: 94 us for 256 sequences, 76 % of what its bytes take at 4.3 TB/s, and 29 us for 64,
// 61 %. Bound: instructions, 9.8 an element, and bytes, which overlap in part (docs/benchmarks/decode.md).
#pragma once

#include <gdn_cuda/kernels/gdn/decode_codes/plan.cuh>
#include <gdn_cuda/kernels/recurrence/code_step.cuh>
#include <gdn_cuda/kernels/recurrence/raw_gates.cuh>

namespace gdn_cuda::gdn {

struct DeltaRule {
    RawGates raw;
    GateForms forms;

    __device__ __forceinline__ void load(const DecodeCodesArgs& args, int sequence, int head) {
        const DecodeArgs& step = args.step;
        forms = {.gate = GateForms::raw, .beta_is_logit = true, .beta_factor = step.beta_factor};
        raw.load(step, sequence * step.gate.sequence + head * step.gate.head,
                 sequence * step.beta.sequence + head * step.beta.head, head, forms);
    }
    __device__ __forceinline__ void finish(const DecodeCodesArgs& args, TokenScalars& to) const {
        raw.finish(args.step, forms, to);
    }
    __device__ __forceinline__ float correction(const TokenScalars& token, float value, float with_key) const {
        return token.beta * (value - token.decay * with_key);
    }
    __device__ __forceinline__ float output(const DecodeCodesArgs&, float y, float, const auto&) const { return y; }
};

template <CodeStepConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.blocks)
    decode_codes(const __grid_constant__ DecodeCodesArgs args) {
    step_codes<kConfig, DeltaRule>(args);
}

}  // namespace gdn_cuda::gdn
