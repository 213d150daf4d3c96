// Compiles on other threads what this process will need later, so that a training step's first call waits for the slowest of
// its kernels, and not for one after another.
#pragma once

#include <string>

#include "source.hpp"

namespace gdn_cuda::jit {

// Prefetching is for programs that allow it, as Python does: before exit() they call keep_background_out_of_nvrtc(), and wait
// until inside_nvrtc() is 0. NVRTC registers functions of its own for exit() as it compiles, so no such function of ours could
// wait.
void allow_prefetch();

// Obtains the cubin on a thread of its own, once a process; obtain() waits for it, and reports its errors.
void prefetch(const KernelSource& source, const std::string& arch);

}  // namespace gdn_cuda::jit
