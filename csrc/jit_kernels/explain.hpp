// Choices in words, where no kernel makes them; Python shows them.
#pragma once

#include <cstdint>
#include <string>

namespace gdn_cuda {

// Which way Toeplitz systems of n rows take on a GPU, and why; symmetric ones where the caller waits to know how it went.
std::string explain_toeplitz_solve(int64_t n, bool symmetric);

}  // namespace gdn_cuda
