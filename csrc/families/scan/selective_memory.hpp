// Memory of a call that its kernels share, and that no result is.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <vector>

#include "selective.hpp"
#include "selective_cut.hpp"

namespace gdn_cuda::scan {

// Freed when the call returns; torch keeps it until the stream has passed.
class CallMemory {
  public:
    explicit CallMemory(const Tensor& like) : like_(like) {}
    float* floats(i64 count, bool zeros = false) {
        if (count == 0) return nullptr;
        const std::vector<int64_t> shape{count};
        kept_.push_back(torch::stable::new_empty(like_, shape, ScalarType::Float));
        if (zeros) torch::stable::zero_(kept_.back());
        return static_cast<float*>(memory_of(kept_.back()));
    }

  private:
    const Tensor& like_;
    std::vector<Tensor> kept_;
};

// ---- Of sequences in pieces

// Real numbers of the states of a sequence.
inline i64 states_of_sequence(const PreparedSelective& prepared) {
    return i64{prepared.inputs.dim} * prepared.inputs.state_size * (prepared.is_complex ? 2 : 1);
}
inline CutProblem cut_problem(const PreparedSelective& prepared) {
    return {.sequences = prepared.inputs.sequences,
            .tokens = prepared.inputs.length,
            .packed = prepared.is_packed(),
            .states = states_of_sequence(prepared) * static_cast<i64>(sizeof(float))};
}
inline Pieces pieces_of(const Cut& cut, const PreparedSelective& prepared, CallMemory& memory) {
    if (cut.count == 1) return {};
    const i64 numbers = cut.count * prepared.inputs.sequences * states_of_sequence(prepared);
    return {.count = cut.count, .length = cut.length, .ends = memory.floats(numbers), .products = memory.floats(numbers)};
}

}  // namespace gdn_cuda::scan
