// Arguments of gdn/backward_chain, for host and device.
#pragma once

#include <gdn_cuda/kernels/chunked/args.cuh>
#include <gdn_cuda/kernels/gdn/backward/handover.cuh>

namespace gdn_cuda::gdn {

// As a call of the chunked form. Backward in time, the gradients of outputs are its values and those of values its outputs, and
// its states are gradients. Forward, R is its output, by chunk: (column, part, token, head and chunk).
struct BackwardChainArgs : ChunkedArgs {
    BackwardHandover to;
    TensorMap states;  // S or E in `to`: (column, 0, row, head and chunk)
};

}  // namespace gdn_cuda::gdn
