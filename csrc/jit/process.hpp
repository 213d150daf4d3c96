// Runs a child process without a shell: argument vector in, exit status and output back.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace gdn_cuda::jit {

struct ProcessResult {
    bool started = false;
    int exit_code = -1;  // 128 + signal if killed; 0 if the host process reaps children: check the output files
    std::string output;  // stdout and stderr combined; the reason if not started
};

// `temporary`, if not empty, becomes the child's TMPDIR. The variables in `without` are removed from its environment. An
// interrupt kills the child and its descendants.
ProcessResult run_process(const std::vector<std::string>& arguments, const std::filesystem::path& temporary = {},
                          std::span<const char* const> without = {});

}  // namespace gdn_cuda::jit
