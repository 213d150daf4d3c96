// Workspace of a call.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <vector>

#include "../../operators/tensor.hpp"

namespace gdn_cuda::scan {

// Freed when the call returns; torch does not reuse it before the stream's earlier work is done.
class CallMemory {
  public:
    explicit CallMemory(const Tensor& like) : like_(like) {}
    float* floats(i64 count, bool zeros = false) {
        if (count == 0) return nullptr;
        const std::vector<int64_t> shape{count};
        kept_.push_back(new_tensor(like_, shape, ScalarType::Float));
        if (zeros) torch::stable::zero_(kept_.back());
        return static_cast<float*>(memory_of(kept_.back()));
    }
    // Zeros.
    unsigned* counts(i64 count) { return reinterpret_cast<unsigned*>(floats(count, true)); }

  private:
    const Tensor& like_;
    std::vector<Tensor> kept_;
};

}  // namespace gdn_cuda::scan
