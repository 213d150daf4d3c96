// Source to cubin, by NVRTC or by nvcc. Both give one entry function, checked, or an Error with everything needed to reproduce
// it.
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
    std::string ptx;  // only when env().dump
};

// Flags that change the code, the same for both compilers; part of the key. No path among them.
std::vector<std::string> code_options(const std::string& arch);
// What one compiler needs beside them; part of the key too.
std::vector<std::string> dialect_options(bool use_nvcc);

// `tools` as toolchain() gives them: a compile that goes on after an interrupt reads them for as long as it takes.
Compiled compile_nvrtc(const KernelSource& source, const std::string& arch, const std::string& key, const Toolchain& tools);
Compiled compile_nvcc(const KernelSource& source, const std::string& arch, const std::string& key, const Toolchain& tools);

// The text of a failed compile: numbered source, options, log, and a shell command that reproduces it.
std::string compile_failure(const KernelSource& source, const std::string& arch, const std::string& compiler,
                            const std::vector<std::string>& options, const std::string& log, const Toolchain& tools);
Resources parse_ptxas(std::string_view log);

// The one entry function of what a compiler gave; an Error that starts with `from` when it is no cubin or holds another number
// of them.
std::string entry_symbol(std::string_view cubin, const std::string& from);

}  // namespace gdn_cuda::jit
