// Environment variables that change nvcc's output. nvcc must see none whose value is not in the key.
#pragma once

#include <array>
#include <filesystem>
#include <string>

namespace gdn_cuda::jit {

// Part of the key, since a machine may need them (conda chooses the host compiler by NVCC_PREPEND_FLAGS).
inline constexpr std::array kNvccKeyVariables = {"NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "PTXAS_FLAGS",     "NVVM_FLAGS",
                                                 "CUDAFE_FLAGS",       "CICC_FLAGS",        "GCC_EXEC_PREFIX", "COMPILER_PATH"};
// Removed from nvcc's environment: they name header folders whose contents are in no key. Kernels include only from our -I
// folders.
inline constexpr std::array kNvccIncludeVariables = {"CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "INCLUDES",
                                                     "SYSTEM_INCLUDES"};

// The non-empty variables of the first list, as "NVCC_APPEND_FLAGS=-G ...".
std::string nvcc_settings_of_environment();

// The host compiler that nvcc uses: NVCC_CCBIN's, else gcc from PATH; empty if there is none.
std::filesystem::path nvcc_host_compiler();

}  // namespace gdn_cuda::jit
