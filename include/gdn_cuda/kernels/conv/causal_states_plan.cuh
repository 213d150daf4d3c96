// Configuration and arguments of conv/causal_states, for host and device.
#pragma once

#include <gdn_cuda/kernels/conv/causal_conv/plan.cuh>

namespace gdn_cuda::conv {

struct CausalStatesConfig {
    DType io;  // dtype of x
    int threads;

    constexpr bool operator==(const CausalStatesConfig&) const = default;

    GDN_FIELDS(io, threads)
};

struct CausalStatesArgs {
    CausalTensor x;
    CausalSequenceArgs sequences;
    CausalStates final_states;  // may be sequences.initial, with the slots of that pool
    bool in_place;
    int channels;
};

}  // namespace gdn_cuda::conv
