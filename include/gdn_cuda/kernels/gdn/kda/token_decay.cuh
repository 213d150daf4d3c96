// The decay of one channel at one token, from the call's gates.
#pragma once

#include <gdn_cuda/kernels/recurrence/call.cuh>
#include <gdn_cuda/kernels/recurrence/channel_decay.cuh>
#include <gdn_cuda/kernels/recurrence/raw_gates.cuh>

namespace gdn_cuda::gdn {

__device__ __forceinline__ float kda_token_decay(const GdnCall& call, i64 batch, i64 token, int head, int channel) {
    const float gate =
        load_float(call.gate.values, scalar_offset(call.gate, batch, token, head) + channel * call.channels.channel);
    float decay = 0.f;
    with_channel_gate(call.channels.form, [&]<ChannelGate kForm>() {
        constexpr bool kRaw = kForm == ChannelGate::softplus || kForm == ChannelGate::bounded;
        const float A_log = kRaw && call.A_log.data != nullptr ? load_float(call.A_log, head) : 0.f,
                    bias = kRaw && call.dt_bias.data != nullptr
                               ? load_float(call.dt_bias, head * call.channels.bias_head + channel)
                               : 0.f;
        decay = ChannelDecay<kForm>(A_log, call.channels.lower_bound)(gate + bias);
    });
    return decay;
}

}  // namespace gdn_cuda::gdn
