// Limits of kernels that Python needs too.
#pragma once

namespace gdn_cuda {

struct Limits {
    int gdn_chunk;          // tokens in a chunk of Gated Delta Net's chunked form
    int toeplitz_general;   // most rows of a Toeplitz system that every GPU with clusters solves without torch's LU
    int toeplitz_positive;  // most rows of a positive definite Toeplitz system that a single kernel solves
};

#pragma GCC visibility push(default)  // gdn_cuda._C calls it
Limits limits();
#pragma GCC visibility pop

}  // namespace gdn_cuda
