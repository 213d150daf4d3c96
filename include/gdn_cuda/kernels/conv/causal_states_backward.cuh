// conv/causal_states_backward: gradients of a causal convolution for the initial states of its sequences.
//
// A thread has a channel of a sequence. The first W - 1 tokens see the state's last inputs, so their dz are recomputed.
// Inputs of the state that are still in the final state of a short sequence get that state's gradient.
//
// Bound: the latency of its loads, for W - 1 tokens of each sequence.
#pragma once

#include <gdn_cuda/kernels/common/varlen.cuh>
#include <gdn_cuda/kernels/conv/causal_conv/backward_plan.cuh>
#include <gdn_cuda/kernels/conv/causal_conv/sequences.cuh>

namespace gdn_cuda::conv {

template <CausalStatesConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads)
    causal_states_backward(const __grid_constant__ CausalStatesBackwardArgs args) {
    using T = Storage<kConfig.io>;
    const CausalArgs& forward = args.call.forward;
    const int groups = static_cast<int>(ceil_div(forward.channels, kConfig.threads));
    const int sequence = static_cast<int>(blockIdx.x) / groups;
    const int channel = static_cast<int>(blockIdx.x) % groups * kConfig.threads + static_cast<int>(threadIdx.x);
    if (channel >= forward.channels) return;
    const bool packed = forward.sequences.cu_seqlens.data != nullptr;
    const CausalSequences sequences{forward.sequences, packed ? 0 : sequence};
    const Span span = span_of(forward.sequences.cu_seqlens, sequence, forward.tokens);
    const auto id_of = [&](int token) { return packed ? i64{sequence} : sequences.id_of(token); };
    const i64 id = span.length > 0 ? id_of(0) : 0;
    const auto value_at = [&](const CausalTensor& x, int token) {
        return to_float(static_cast<const T*>(
            x.data)[(packed ? 0 : sequence * x.batch) + channel * x.channel + (span.start + token) * x.token]);
    };
    const auto weight = [&](int k) {
        return load_float(forward.weight, channel * forward.weight_channel + k * forward.weight_tap);
    };

    const CausalStates &to = args.dinitial, &final_states = args.call.grad_states;
    float* const result = static_cast<float*>(const_cast<void*>(to.values.data)) + sequence * to.slot + channel * to.channel;
    const bool passes = final_states.values.data != nullptr && (span.length == 0 || (id >= 0 && id_of(span.length - 1) == id));
#pragma unroll 1
    for (int i = 0; i < to.positions; ++i) {
        float sum = 0.f;
        if (passes && i >= span.length)
            sum = load_float(final_states.values, sequence * final_states.slot + channel * final_states.channel +
                                                      (i - span.length) * final_states.position);
        result[i * to.position] = sum;
    }
#pragma unroll 1
    for (int token = 0; token < min(span.length, to.positions); ++token) {
        if (id < 0 || id_of(token) != id) continue;
        float d = value_at(args.call.grad, token);
        if (forward.silu) {
            float z = forward.bias.data == nullptr ? 0.f : load_float(forward.bias, channel * forward.bias_channel);
#pragma unroll 1
            for (int k = 0; k < forward.taps; ++k) {
                const int at = token - (forward.taps - 1) + k;
                if (at < 0)
                    z = fmaf(weight(k), sequences.state_of(id).at(channel, -at), z);
                else if (id_of(at) == id)
                    z = fmaf(weight(k), value_at(forward.x, at), z);
            }
            d *= silu_slope(z);
        }
#pragma unroll 1
        for (int i = token; i < to.positions; ++i)
            result[i * to.position] = fmaf(weight(i - token), d, result[i * to.position]);
    }
}

}  // namespace gdn_cuda::conv
