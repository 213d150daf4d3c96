// Compiles on other threads what this process will need later, so that a training step's first call waits for the slowest of
// its kernels, and not for one after another.
#pragma once

#include <string>

#include "source.hpp"

namespace gdn_cuda::jit {

// Obtains the cubin on a thread of its own, once a process; obtain() waits for it. Errors are left to obtain() too: it meets
// them again.
void prefetch(const KernelSource& source, const std::string& arch);

}  // namespace gdn_cuda::jit
