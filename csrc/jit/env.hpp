// Every environment variable the library reads, stated once. `.example_env` and `docs/jit.md` are checked against this table.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace gdn_cuda::jit {

struct Variable {
    const char* name;
    const char* default_text;  // as a user would write it; empty: not set
    const char* meaning;
};

std::span<const Variable> variables();

enum class Prefill { automatic, mma, recurrent };
const char* name_of(Prefill prefill);

// Values as they stood at first use; a malformed one throws an Error that names variable, expected and got.
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
    bool tuned;                             // GDN_TUNED
    int log_level;                          // GDN_LOG_LEVEL, as in log.hpp
    std::filesystem::path cuda_home;        // GDN_CUDA_HOME
    std::filesystem::path cutlass_include;  // GDN_CUTLASS_INCLUDE
    std::filesystem::path cccl_include;     // GDN_CCCL_INCLUDE
};

Env parse_env();   // reads the process environment now
const Env& env();  // the snapshot taken at first use

}  // namespace gdn_cuda::jit
