// The environment variables that the library reads: those of this layer, and those that higher layers declare as a Setting.
// `.example_env` and `docs/jit.md` are checked against the table of both.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace gdn_cuda::jit {

struct Variable {
    const char* name;
    const char* default_text;  // as a user would write it; empty if unset
    const char* meaning;
};

std::vector<Variable> variables();  // this layer's, then declared ones by name

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
    bool tuned;                             // GDN_TUNED
    bool nvtx;                              // GDN_NVTX
    int log_level;                          // GDN_LOG_LEVEL, as in log.hpp
    std::filesystem::path cuda_home;        // GDN_CUDA_HOME
    std::filesystem::path cutlass_include;  // GDN_CUTLASS_INCLUDE
    std::filesystem::path cccl_include;     // GDN_CCCL_INCLUDE
};

Env parse_env();   // reads the process environment now, the Settings too
const Env& env();  // the snapshot taken at first use

// A variable whose owner is a layer above, such as a family. The owner declares it as an inline constant in its variables.hpp:
//     inline const jit::Setting kColour({"GDN_COLOUR", "red", "what it decides"}, "red or green", parse_colour);
// Never destroyed before the library is unloaded.
class Setting {
  public:
    // Parses the text in lower case; the default text if the variable is empty or not set. Returns no value for malformed text.
    using Parse = std::optional<int> (*)(const std::string& text);

    Setting(const Variable& variable, const char* expected, Parse parse);
    Setting(const Setting&) = delete;
    Setting& operator=(const Setting&) = delete;

    const Variable& variable() const { return variable_; }
    // The value at the first use of any variable.
    int value() const {
        env();
        return value_.load(std::memory_order_relaxed);
    }
    void read() const;  // reads the process environment now; throws an Error as parse_env does

    const Setting* next() const { return next_; }
    static const Setting* first();

  private:
    Variable variable_;
    const char* expected_;
    Parse parse_;
    mutable std::atomic<int> value_{0};
    const Setting* next_;
};

// Parses the text of a Setting: 0 for auto, or a number from 1 to `most`.
std::optional<int> auto_or_number(const std::string& text, int most);

}  // namespace gdn_cuda::jit
