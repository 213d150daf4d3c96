// The table of all environment variables that the library reads. `.example_env` and `docs/jit.md` are checked against it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace gdn_cuda::jit {

struct Variable {
    const char* name;
    const char* default_text;  // as a user would write it; empty if unset
    const char* meaning;
};

std::span<const Variable> variables();

enum class Prefill { automatic, mma, recurrent };
const char* name_of(Prefill prefill);

// The values at first use. A malformed one throws an Error with the variable, what was expected, and what was given.
struct Env {
    std::filesystem::path cache_dir;        // GDN_JIT_CACHE_DIR
    std::uint64_t cache_max_bytes;          // GDN_JIT_CACHE_MAX_BYTES: bytes, or with a suffix K, M or G
    std::filesystem::path prebuilt_dir;     // GDN_JIT_PREBUILT_DIR
    bool disable;                           // GDN_JIT_DISABLE
    bool use_nvcc;                          // GDN_JIT_USE_NVCC
    std::filesystem::path nvcc;             // GDN_JIT_NVCC
    bool dump;                              // GDN_JIT_DUMP
    bool lineinfo;                          // GDN_JIT_LINEINFO
    bool print;                             // GDN_JIT_PRINT
    Prefill prefill;                        // GDN_PREFILL
    int scan_pieces;                        // GDN_SCAN_PIECES, 0: auto
    bool tuned;                             // GDN_TUNED
    std::string integrations;               // GDN_INTEGRATIONS: words with commas between
    bool nvtx;                              // GDN_NVTX
    int log_level;                          // GDN_LOG_LEVEL, as in log.hpp
    std::filesystem::path cuda_home;        // GDN_CUDA_HOME
    std::filesystem::path cutlass_include;  // GDN_CUTLASS_INCLUDE
    std::filesystem::path cccl_include;     // GDN_CCCL_INCLUDE
};

Env parse_env();   // reads the process environment now
const Env& env();  // the snapshot taken at first use

}  // namespace gdn_cuda::jit
