// The little of ELF that the JIT needs: is this a cubin, which kernels does it hold, which build is this library.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace gdn_cuda::jit {

bool is_cubin(std::string_view bytes);                             // ELF64, machine CUDA, section table inside the bytes
std::vector<std::string> kernel_symbols(std::string_view cubin);   // entry functions, in the table's order; empty: malformed
std::string build_identity(const std::filesystem::path& library);  // GNU build id in hex; without one, size and content digest

}  // namespace gdn_cuda::jit
