// Compiles a source to a cubin with NVRTC or nvcc. Either yields one verified kernel, or an Error with all that is needed to
// reproduce it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "source.hpp"
#include "toolchain.hpp"

namespace gdn_cuda::jit {

struct Compiled {
    Cubin cubin;
    Resources resources;
    double seconds = 0;
    std::string log;
    std::string ptx;  // only if env().dump
};

// Flags that change the code, common to both compilers. They are part of the key, so they hold no path.
std::vector<std::string> code_options(const KernelSource& source, const std::string& arch);
// Additional flags of one compiler; part of the key too.
std::vector<std::string> dialect_options(bool use_nvcc);

// `tools` must come from toolchain(), which never frees it: after an interrupt the compile continues in the background and
// reads it.
Compiled compile_nvrtc(const KernelSource& source, const std::string& arch, const std::string& key, const Toolchain& tools);
// The capabilities that NVRTC compiles for.
std::vector<int> nvrtc_capabilities(const Toolchain& tools);
Compiled compile_nvcc(const KernelSource& source, const std::string& arch, const std::string& key, const Toolchain& tools);

// The error text of a failed compile: numbered source, options, log, and a shell command that reproduces it.
std::string compile_failure(const KernelSource& source, const std::string& arch, const std::string& compiler,
                            const std::vector<std::string>& options, const std::string& log, const Toolchain& tools);
Resources parse_ptxas(std::string_view log);

// The symbol of the only kernel in `cubin`. Throws an Error that starts with `from` if it is no cubin or does not hold exactly
// one kernel.
std::string entry_symbol(std::string_view cubin, const std::string& from);

}  // namespace gdn_cuda::jit
