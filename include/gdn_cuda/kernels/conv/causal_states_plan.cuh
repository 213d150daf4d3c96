// Configuration and arguments of conv/causal_states, for host and device.
#pragma once

#include <gdn_cuda/kernels/conv/causal_conv/plan.cuh>

namespace gdn_cuda::conv {

struct CausalStatesConfig {
    DType io;  // x
    int threads;

    constexpr bool operator==(const CausalStatesConfig&) const = default;

    GDN_FIELDS(io, threads)
};

struct CausalStatesArgs {
    CausalTensor x;
    CausalSequenceArgs sequences;
    CausalStates behind;  // may be sequences.initial: then slots are those of that pool
    bool in_place;
    int channels;
};

}  // namespace gdn_cuda::conv
