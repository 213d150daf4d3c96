// A ring of stages in shared memory: which one an iteration uses, and the parity of its mbarriers' phase. Recomputed from the
// iteration rather than carried, to save registers.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda {

template <int kStages>
struct PipelineStage {
    int index;
    unsigned parity;

    __device__ __forceinline__ explicit PipelineStage(int iteration)
        : index(static_cast<int>(static_cast<unsigned>(iteration) % kStages)),
          parity(static_cast<unsigned>(iteration) / kStages & 1) {}
};

}  // namespace gdn_cuda
