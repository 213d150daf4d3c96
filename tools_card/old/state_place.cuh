// One head's state in memory, for host and device.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda::gdn {

struct StatePlace {
    void* data = nullptr;
    DType type = DType::f32;  // or bf16
};

}  // namespace gdn_cuda::gdn
