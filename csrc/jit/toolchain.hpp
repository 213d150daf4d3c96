// Locates the compiler and the headers, and identifies their exact versions.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace gdn_cuda::jit {

// Search order: init() arguments, environment, the hook's answer (wheels, through cuda-pathfinder), /usr/local/cuda.
struct SearchPaths {
    std::filesystem::path library_root;  // the folder that holds gdn_cuda/kernels/, or include/gdn_cuda/kernels/
    std::filesystem::path cuda_home;     // a toolkit or wheel folder (nvidia/cu13; nvidia with cuda_runtime/, cuda_nvrtc/ …)
    std::filesystem::path cuda_include;  // holds cuda_bf16.h
    std::filesystem::path cutlass_include;  // holds cute/ and cutlass/
    std::filesystem::path cccl_include;     // holds cuda/std/
    std::filesystem::path nvrtc;            // libnvrtc.so.NN
    std::filesystem::path nvcc;

    bool operator==(const SearchPaths&) const = default;
};

using PathHook = std::function<SearchPaths()>;

// What the hook's answer depends on, so that it can be stored across processes (path_memo.hpp).
struct HookInputs {
    std::string identity;                        // versions, environment, search path
    std::vector<std::filesystem::path> folders;  // whose contents the hook reads
};

// Installed by Python. Called when a path is first needed, unless an earlier process's answer still holds, and again only after
// it threw. An Error means that it found nothing this time; any other exception ends the calling operation.
void set_path_hook(PathHook hook, std::function<HookInputs()> inputs = {});
// Optional; empty paths are ignored. Repeating the same paths has no cost. Throws an Error for a folder without the expected
// contents, and for different paths after a kernel was loaded.
void init(const std::filesystem::path& library_root, const std::filesystem::path& cuda_home);

// The result of one search, for error messages and `doctor`.
enum class Part { library, nvrtc, builtins, nvcc, cuda_headers, cccl, cutlass };
struct Finding {
    Part part;
    std::string what;  // "CUDA headers (cuda_bf16.h)"
    std::optional<std::filesystem::path> found;
    std::vector<std::string> tried;  // "GDN_CUDA_HOME=/x: no include/cuda_bf16.h"
    std::string fix;                 // "pip install nvidia-cuda-runtime, or set GDN_CUDA_HOME"
    bool required = true;
};

struct Toolchain {
    std::filesystem::path library_include;  // ours
    std::filesystem::path cuda_include;
    std::filesystem::path cutlass_include;
    std::filesystem::path cccl_include;
    std::filesystem::path nvrtc, nvrtc_builtins;
    std::filesystem::path nvcc;
    std::vector<Finding> findings;  // found or not

    std::string compiler_identity(bool use_nvcc) const;  // exact build without paths; "missing" if there is none
    std::string external_headers_identity(
        bool uses_cutlass) const;  // every header that could be included (external_headers.hpp)
    std::vector<std::filesystem::path> include_dirs(bool uses_cutlass) const;
    // Where <cccl/cuda/std/...> is found, which CUTLASS includes under CUDA 13; empty if it is cuda_include.
    std::filesystem::path cccl_parent() const;
    void require(bool use_nvcc, bool uses_cutlass) const;
    void require(const std::vector<Part>& parts) const;  // throws an Error with every place searched for a missing part
};

// What the folder lacks as an argument of init(); empty if nothing.
std::string missing_in_library_root(const std::filesystem::path& folder);
std::string missing_in_cuda_home(const std::filesystem::path& folder);

Toolchain discover(const SearchPaths& from_init, const SearchPaths& from_hook);  // depends only on the file system and env()
const Toolchain& toolchain();  // discovered once; does not throw for missing parts

// The toolchain's part of a key, computed once per process. refresh_identities() discards it: every compile must look at the
// files again, which may have been edited during a long-lived process.
struct Identities {
    std::string included;  // see included_digest()
    std::string compiler;
    std::string headers;  // CUDA's, and CUTLASS's if used, that the code can include; all, if that cannot be determined
};
Identities identities(const std::string& code, bool uses_cutlass);
// Digest of names and contents of our headers that the code can include; of all our headers if that cannot be determined.
std::string included_digest(const std::string& code);
std::string library_digest();  // of all our headers; distinguishes installations
void refresh_identities();

}  // namespace gdn_cuda::jit
