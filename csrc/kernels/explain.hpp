// Choices in words, where no kernel makes them; Python shows them.
#pragma once

#include <cstdint>
#include <string>

namespace gdn_cuda {

#pragma GCC visibility push(default)  // gdn_cuda._C calls it
// Which way Toeplitz systems of n rows take on a GPU, and why; symmetric ones where the caller waits to know how it went.
std::string explain_toeplitz_solve(int64_t n, bool symmetric);
#pragma GCC visibility pop

}  // namespace gdn_cuda
