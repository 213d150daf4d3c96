// Explanations, for Python to show, of choices that no kernel's heuristic makes.
#pragma once

#include <cstdint>
#include <string>

namespace gdn_cuda {

#pragma GCC visibility push(default)  // gdn_cuda._C calls it
// Which algorithm solves Toeplitz systems of n rows on a GPU, and why; `symmetric` ones where the caller waits for the status.
std::string explain_toeplitz_solve(int64_t n, bool symmetric);
#pragma GCC visibility pop

}  // namespace gdn_cuda
