// The parts of ELF that the JIT needs: whether a file is a cubin, which kernels it holds, and a library's build id.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace gdn_cuda::jit {

bool is_cubin(std::string_view bytes);                             // ELF64, EM_CUDA, section table within the file
std::vector<std::string> kernel_symbols(std::string_view cubin);   // of kernels, in symbol-table order; empty if malformed
std::string build_identity(const std::filesystem::path& library);  // GNU build id in hex, or else size and content digest

}  // namespace gdn_cuda::jit
