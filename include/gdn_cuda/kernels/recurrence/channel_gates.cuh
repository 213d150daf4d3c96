// Gates for every channel of the key, where each column of the state has its own decay; for host and device.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda::gdn {

// What a channel's gate is before the kernel; channel_decay.cuh makes decays of it.
enum class ChannelGate : int {
    none,       // a gate for each head: GateForms
    log_decay,  // the decay's logarithm
    softplus,   // raw: the logarithm is -exp(A_log) softplus(a + dt_bias)
    bounded,    // raw: the logarithm is lower_bound sigmoid(exp(A_log) (a + dt_bias))
    decay,      // the decay itself
};

// Beside a call's gate (batch, token, head, channel), whose other strides are those of Scalars; A_log (head), and dt_bias.
struct ChannelGates {
    ChannelGate form = ChannelGate::none;
    float lower_bound = 0.f;  // of `bounded`, below 0
    i64 channel = 0;          // the gate's stride of channels
    i64 bias_head = 0;        // dt_bias (head, channel), channels contiguous
};

}  // namespace gdn_cuda::gdn
