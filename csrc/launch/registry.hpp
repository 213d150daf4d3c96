// The registry: all kernels whose host headers (families/<family>/<kernel>.hpp) a file of the library includes, sorted by their
// ids. Each Spec registers itself by its GDN_KERNEL (spec.hpp). Ahead-of-time compilation, the compile tests, the docs table,
// warmup() and the benchmarks read the registry; nothing else lists all kernels.
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "../jit/source.hpp"

namespace gdn_cuda {

struct KernelTraits {
    const char* summary;
    const char *family = "", *name = "", *config_type = "", *args_type = "";
    int min_capability = 80;                               // of the device
    int max_capability = std::numeric_limits<int>::max();  // for a kernel with architecture-specific instructions
    bool uses_cutlass = false;                             // whether its .cuh includes headers of CUTLASS or libcu++
    bool few_registers = false;                            // jit::KernelSource's
    bool starts_early = false;                             // whether it waits for the grid before (dependent_launch.cuh)
};
constexpr KernelTraits kernel_traits(const char* family, const char* name, const char* config_type, const char* args_type,
                                     KernelTraits traits) {
    traits.family = family;
    traits.name = name;
    traits.config_type = config_type;
    traits.args_type = args_type;
    return traits;
}

struct RegisteredConfiguration {
    jit::KernelSource source;
    int threads = 0;
    int shared_bytes = 0;
    const void* config = nullptr;  // the Spec's
    void (*load_config)(const void* config, int ordinal) = nullptr;

    void load(int ordinal) const { load_config(config, ordinal); }  // into this process, as a first call would
};

struct RegisteredKernel {
    std::string family, name, summary;
    int min_capability = 80, max_capability = 0;
    bool uses_cutlass = false;
    std::vector<RegisteredConfiguration> configurations;  // all that the heuristic can choose
};

struct ConfigurationList {
    const void* first;
    std::size_t count, bytes_of_one;
};
// A Spec without its type, as a static object before main.
struct RegisteredSpec {
    const KernelTraits& kernel;
    ConfigurationList (*configurations)();
    RegisteredConfiguration (*describe)(const void* config);
    const RegisteredSpec* next = nullptr;
};
void add_to_registry(RegisteredSpec& spec);

#pragma GCC visibility push(default)  // gdn_cuda._C calls it
const std::vector<RegisteredKernel>& registry();
#pragma GCC visibility pop

}  // namespace gdn_cuda
