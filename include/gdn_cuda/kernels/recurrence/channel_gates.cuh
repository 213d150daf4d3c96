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

// The base of a kernel's shared memory that holds the decays of one head's channels, if it has gates of channels.
template <int kChannels, bool kChannelGates>
struct ChannelDecays {};
template <int kChannels>
struct alignas(16) ChannelDecays<kChannels, true> {
    float decays[kChannels];
};

}  // namespace gdn_cuda::gdn
