// All kernels of the library, one line each in registry.cpp. Ahead-of-time compilation, the compile tests, the docs table,
// warmup() and the benchmarks read this list; no other code lists all kernels.
#pragma once

#include <string>
#include <vector>

#include "jit/source.hpp"

namespace gdn_cuda {

struct RegisteredConfiguration {
    jit::KernelSource source;
    int threads = 0;
    int shared_bytes = 0;
    const void* config = nullptr;  // the Spec's
    void (*load_config)(const void* config, int ordinal) = nullptr;

    void load(int ordinal) const { load_config(config, ordinal); }  // loads it into this process, as a first call would
};

struct RegisteredKernel {
    std::string family, name, summary;
    int min_capability = 80, max_capability = 0;
    bool uses_cutlass = false;
    std::vector<RegisteredConfiguration> configurations;  // all that the heuristic can choose
};

#pragma GCC visibility push(default)  // gdn_cuda._C calls it
const std::vector<RegisteredKernel>& registry();
#pragma GCC visibility pop

}  // namespace gdn_cuda
