// Checks of what becomes the decay of a call: a gate for each head, or for every channel of the key.
#pragma once

#include <gdn_cuda/kernels/recurrence/call.cuh>
#include <optional>

#include "checks.hpp"

namespace gdn_cuda::gdn {

enum class GatePer { head, head_or_channel };  // what an operator takes

struct DecayTensors {
    const char* name;  // the gate's argument
    View gate, A_log, dt_bias;
    std::optional<double> lower_bound = {};
    bool is_linear = false;
};

// A gate for every channel, (B, T, Hv, dk) or (N, Hv, dk), without the stride of channels.
Scalars channel_scalars(const View& view);

// The rank of query, key and value as the call gave them, and of a gate for every channel.
int rows_rank(const Sequences& sequences);

// The gate's rank decides: that of value, (..., Hv, dk), or one less, (..., Hv). A_log (Hv,) makes it raw, with dt_bias of the
// shape of one token's gates, or flat; a lower bound, which only gates of channels have, does so without A_log too. Fills the
// call's gate, A_log, dt_bias, channels and forms.gate.
void check_decay(const Checks& check, GdnCall& call, const Sequences& sequences, const DecayTensors& x, GatePer per);

// The parts of it that gates of channels without a call have too. dt_bias: (heads, dk), or flat.
void check_bound(const Checks& check, const std::optional<double>& lower_bound);
struct ChannelBias {
    Tagged values;
    int64_t head;  // stride
};
ChannelBias check_channel_bias(const Checks& check, const View& dt_bias, int64_t heads, int64_t dk, DType io, const View& like,
                               const char* like_name);

}  // namespace gdn_cuda::gdn
