// Where the compiler and the headers are, and exactly which ones they are.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace gdn_cuda::jit {

// Places to look, in the order of trust: init() arguments, environment, what the hook found (wheels, through cuda-pathfinder),
// /usr/local/cuda.
struct SearchPaths {
    std::filesystem::path library_root;  // the folder that holds gdn_cuda/kernels/, or include/gdn_cuda/kernels/
    std::filesystem::path cuda_home;  // a toolkit, or a wheel's folder (nvidia/cu13; nvidia with cuda_runtime/, cuda_nvrtc/ …)
    std::filesystem::path cuda_include;     // holds cuda_bf16.h
    std::filesystem::path cutlass_include;  // holds cute/ and cutlass/
    std::filesystem::path cccl_include;     // holds cuda/std/
    std::filesystem::path nvrtc;            // libnvrtc.so.NN
    std::filesystem::path nvcc;

    bool operator==(const SearchPaths&) const = default;
};

using PathHook = std::function<SearchPaths()>;

// On what the hook's answer depends, so that it can be kept from process to process (path_memo.hpp).
struct HookInputs {
    std::string identity;                        // settings: versions, environment, search path
    std::vector<std::filesystem::path> folders;  // whose contents it looks at
};

// Python's. Called at the first need of a path, and again only after it threw: an Error means that it found nothing this time,
// and anything else ends the call that asked. Not called where the answer of an earlier process still holds.
void set_path_hook(PathHook hook, std::function<HookInputs()> inputs = {});
// Optional; an empty path says nothing. Free when repeated with the same paths; an Error for a folder that does not hold what
// it should, and with other paths once a kernel was loaded.
void init(const std::filesystem::path& library_root, const std::filesystem::path& cuda_home);

// One thing that was looked for, for the error message and for `doctor`.
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
    std::vector<Finding> findings;  // all of them, found or not

    std::string compiler_identity(bool use_nvcc) const;  // exact build, no path; "missing" when there is none
    std::string external_headers_identity(bool uses_cutlass) const;
    std::vector<std::filesystem::path> include_dirs(bool uses_cutlass) const;
    std::filesystem::path cccl_parent() const;  // where <cccl/cuda/std/...> is found, which CUTLASS includes under CUDA 13;
                                                // empty where that is the CUDA headers' folder
    void require(bool use_nvcc, bool uses_cutlass) const;
    void require(const std::vector<Part>& parts) const;  // throws an Error listing each place tried for what is missing
};

// What a folder given to init() should hold and does not; empty when it does.
std::string missing_in_library_root(const std::filesystem::path& folder);
std::string missing_in_cuda_home(const std::filesystem::path& folder);

Toolchain discover(const SearchPaths& from_init, const SearchPaths& from_hook);  // pure but for the file system and env()
const Toolchain& toolchain();  // discovered once; never throws for what is merely missing

// What of the toolchain in use goes into a key. Computed once a process; refresh_identities() has the files looked at again, as
// a compile must: in a long-lived process they may have been edited since.
struct Identities {
    std::string included;  // as included_digest()
    std::string compiler;
    std::string headers;  // CUDA's, and CUTLASS's where they are used
};
Identities identities(const std::string& code, bool uses_cutlass);
// Of the headers of ours that the code can include, by name and contents; where that cannot be told, of all of them.
std::string included_digest(const std::string& code);
std::string library_digest();  // of all headers of ours, to tell installations apart
void refresh_identities();

}  // namespace gdn_cuda::jit
