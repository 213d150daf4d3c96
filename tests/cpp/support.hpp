// What the tests share: temporary folders, cubins made by hand, child processes, captured log messages.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jit/log.hpp"
#include "jit/source.hpp"

namespace gdn_cuda::test {

class TemporaryFolder {
  public:
    TemporaryFolder();
    ~TemporaryFolder();
    TemporaryFolder(const TemporaryFolder&) = delete;
    TemporaryFolder& operator=(const TemporaryFolder&) = delete;

    const std::filesystem::path& path() const { return path_; }
    std::filesystem::path operator/(const std::filesystem::path& name) const { return path_ / name; }

  private:
    std::filesystem::path path_;
};

void write(const std::filesystem::path& path, std::string_view text);  // with the folders above it
std::string read(const std::filesystem::path& path);
void set_age(const std::filesystem::path& path, std::chrono::seconds age);

// A whole, tiny ELF for CUDA that holds these entry functions.
std::string tiny_cubin(const std::vector<std::string>& entries);
jit::Cubin cubin_of(const std::string& symbol);
std::string key_of(char digit);  // 64 times

constexpr uid_t kNobody = 65534;

using Environment = std::vector<std::pair<const char*, std::string>>;

struct ChildResult {
    std::string value;  // what the function returned; "error: ..." for what it threw
    std::string stderr_text;
    bool crashed = false;
};

// Runs `body` in a forked process with these variables set on top of an environment with none of ours, and HOME in `home`.
ChildResult in_child(const Environment& environment, const std::function<std::string()>& body);

// Starts it and returns its process id; wait_for() gives the exit code, or 128 + signal.
pid_t start_child(const std::function<int()>& body);
int wait_for(pid_t child);

// Collects messages instead of writing them to standard error.
class CapturedLog {
  public:
    CapturedLog();
    ~CapturedLog() { jit::set_log_sink({}); }
    std::vector<std::string> at_least(jit::Level level) const;
    std::size_t count(std::string_view part) const;

  private:
    std::vector<std::pair<jit::Level, std::string>> messages_;
};

// The message of what `call` throws; a test failure when it does not throw.
template <class Call>
std::string message_of(Call&& call) {
    try {
        call();
    } catch (const std::exception& error) {
        return error.what();
    }
    ADD_FAILURE() << "expected an exception";
    return {};
}

inline bool contains(std::string_view text, std::string_view part) {
    return text.find(part) != std::string_view::npos;
}

#define EXPECT_CONTAINS(text, part) EXPECT_PRED2(::gdn_cuda::test::contains, text, part)

}  // namespace gdn_cuda::test
