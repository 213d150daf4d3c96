// Checks of packed sequences, whose offsets are in cu_seqlens.
#pragma once

#include "tensor.hpp"

namespace gdn_cuda {

constexpr int64_t kMaxTokens = (int64_t{1} << 31) - 256;  // kernels use int, rounded up to whole chunks

// Also checks the values if they are on the CPU; on a GPU that would synchronize.
void check_cu_seqlens(const Checks& check, const View& cu_seqlens, int64_t tokens, const View& as, const char* as_name);

}  // namespace gdn_cuda
