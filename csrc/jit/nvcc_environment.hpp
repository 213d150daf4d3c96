// Which variables of the environment change what nvcc compiles. A compile by nvcc must not see any that its key does not hold.
#pragma once

#include <array>
#include <filesystem>
#include <string>

namespace gdn_cuda::jit {

// Go into the key: a machine may need them (conda chooses the host compiler by NVCC_PREPEND_FLAGS).
constexpr std::array kNvccKeyVariables = {"NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "PTXAS_FLAGS",     "NVVM_FLAGS",
                                          "CUDAFE_FLAGS",       "CICC_FLAGS",        "GCC_EXEC_PREFIX", "COMPILER_PATH"};
// Taken away from nvcc: they name folders of headers, whose contents no key holds. A kernel includes only what we name by -I.
constexpr std::array kNvccIncludeVariables = {"CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "INCLUDES", "SYSTEM_INCLUDES"};

// "NVCC_APPEND_FLAGS=-G ...": of the first list those that are set and not empty.
std::string nvcc_settings_of_environment();

// The host compiler that nvcc will preprocess with: NVCC_CCBIN's, else gcc on PATH. Empty when there is none.
std::filesystem::path nvcc_host_compiler();

}  // namespace gdn_cuda::jit
