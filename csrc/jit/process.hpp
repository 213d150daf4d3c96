// A child process without a shell: an argument vector in, exit status and output back.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace gdn_cuda::jit {

struct ProcessResult {
    bool started = false;
    int exit_code = -1;  // 128 + signal when killed; 0 when the host process reaps children itself, so check what was produced
    std::string output;  // standard output and error together; the reason when not started
};

// `temporary` (when not empty) becomes the child's TMPDIR. The child does not get the variables of `without`. An interrupt
// kills the child and the processes that it started.
ProcessResult run_process(const std::vector<std::string>& arguments, const std::filesystem::path& temporary = {},
                          std::span<const char* const> without = {});

}  // namespace gdn_cuda::jit
