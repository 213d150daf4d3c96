// A JIT request: a kernel of the include tree with one configuration. Independent of torch and of all families.
#pragma once

#include <cstdint>
#include <string>

namespace gdn_cuda::jit {

struct KernelSource {
    std::string family;
    std::string name;            // include/gdn_cuda/kernels/<family>/<name>.cuh
    std::string configuration;   // "{.head_k = 128, .state = DType::f32}": for messages and as the template argument
    std::string code;            // the translation unit: one #include and one explicit instantiation
    bool uses_cutlass = false;   // adds CUTLASS's and libcu++'s include folders, and their identity to the key
    bool few_registers = false;  // ptxas makes no optimisations that take more registers

    std::string id() const { return family + "/" + name; }
};

// The #include line for a kernel id.
inline std::string include_of(const std::string& id) {
    return "#include <gdn_cuda/kernels/" + id + ".cuh>\n";
}

// A compiled kernel, as stored on disk and loaded by the driver.
struct Cubin {
    std::string bytes;
    std::string symbol;  // of its only kernel
};

// Resource usage as reported by ptxas.
struct Resources {
    int registers = 0;
    int static_shared_bytes = 0;
    int spill_bytes = 0;  // stores and loads
    int stack_bytes = 0;
    bool is_serialized = false;  // ptxas waits after every wgmma
};

}  // namespace gdn_cuda::jit
