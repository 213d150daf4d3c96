// What the JIT is asked for: a kernel of the include tree with one configuration. Knows neither torch nor any family.
#pragma once

#include <cstdint>
#include <string>

namespace gdn_cuda::jit {

struct KernelSource {
    std::string family;         // "gdn"
    std::string name;           // "recurrent": include/gdn_cuda/kernels/<family>/<name>.cuh
    std::string configuration;  // "{.head_k = 128, .state = DType::f32}": for people and for the template argument
    std::string code;           // the translation unit: one #include and one explicit instantiation
    bool uses_cutlass = false;  // adds CUTLASS's and libcu++'s include folders, and their identity to the key

    std::string id() const { return family + "/" + name; }
};

// The line of a translation unit that includes a kernel, by its id.
inline std::string include_of(const std::string& id) {
    return "#include <gdn_cuda/kernels/" + id + ".cuh>\n";
}

// A compiled kernel, as the store keeps it and the driver loads it.
struct Cubin {
    std::string bytes;
    std::string symbol;  // the one entry function
};

// What ptxas reported of a compile.
struct Resources {
    int registers = 0;
    int static_shared_bytes = 0;
    int spill_bytes = 0;  // stores and loads
    int stack_bytes = 0;
};

}  // namespace gdn_cuda::jit
