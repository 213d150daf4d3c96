// Limits of kernels that Python needs too.
#pragma once

namespace gdn_cuda {

struct Limits {
    int gdn_chunk;          // tokens of a chunk of the Gated Delta Net
    int toeplitz_general;   // rows of a Toeplitz system that every GPU with clusters solves without torch's LU
    int toeplitz_positive;  // rows of a positive definite one that a single kernel solves
};

#pragma GCC visibility push(default)  // gdn_cuda._C calls it
Limits limits();
#pragma GCC visibility pop

}  // namespace gdn_cuda
