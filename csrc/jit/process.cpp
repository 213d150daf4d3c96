#include "process.hpp"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

#include "files.hpp"

extern char** environ;

namespace gdn_cuda::jit {
namespace {

struct SpawnSettings {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;

    SpawnSettings() {
        posix_spawn_file_actions_init(&actions);
        posix_spawnattr_init(&attributes);
    }
    ~SpawnSettings() {
        posix_spawn_file_actions_destroy(&actions);
        posix_spawnattr_destroy(&attributes);
    }
    SpawnSettings(const SpawnSettings&) = delete;
    SpawnSettings& operator=(const SpawnSettings&) = delete;
};

std::vector<std::string> child_environment(const std::filesystem::path& temporary, std::span<const char* const> without) {
    std::vector<std::string> result;
    for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
        const std::string_view name = std::string_view(*entry).substr(0, std::string_view(*entry).find('='));
        if ((temporary.empty() || name != "TMPDIR") && std::ranges::find(without, name) == without.end())
            result.emplace_back(*entry);
    }
    if (!temporary.empty()) result.push_back("TMPDIR=" + temporary.string());
    return result;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
    std::vector<char*> result;
    for (std::string& text : strings) result.push_back(text.data());
    result.push_back(nullptr);
    return result;
}

}  // namespace

ProcessResult run_process(const std::vector<std::string>& arguments, const std::filesystem::path& temporary,
                          std::span<const char* const> without) {
    ProcessResult result;
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) {
        result.output = errno_text(errno);
        return result;
    }
    const Descriptor reader(ends[0]);
    Descriptor writer(ends[1]);

    SpawnSettings settings;
    posix_spawn_file_actions_addopen(&settings.actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&settings.actions, writer.get(), 1);
    posix_spawn_file_actions_adddup2(&settings.actions, writer.get(), 2);
    sigset_t none, defaults;  // what the host blocked or ignored is not the compiler's business
    sigemptyset(&none);
    sigemptyset(&defaults);
    for (int signal : {SIGCHLD, SIGPIPE, SIGINT, SIGTERM}) sigaddset(&defaults, signal);
    posix_spawnattr_setsigmask(&settings.attributes, &none);
    posix_spawnattr_setsigdefault(&settings.attributes, &defaults);
    posix_spawnattr_setflags(&settings.attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);

    std::vector<std::string> argument_copy = arguments, environment = child_environment(temporary, without);
    pid_t child = -1;
    const int error = ::posix_spawn(&child, arguments.front().c_str(), &settings.actions, &settings.attributes,
                                    pointers(argument_copy).data(), pointers(environment).data());
    if (error != 0) {
        result.output = errno_text(error);
        return result;
    }
    result.started = true;
    writer.close();
    result.output = read_descriptor(reader.get()).value_or("");

    int status = 0;
    pid_t waited;
    do waited = ::waitpid(child, &status, 0);
    while (waited < 0 && errno == EINTR);
    if (waited < 0 || WIFEXITED(status))
        result.exit_code = waited < 0 ? 0 : WEXITSTATUS(status);  // ECHILD: the host ignores SIGCHLD
    else
        result.exit_code = 128 + WTERMSIG(status);
    return result;
}

}  // namespace gdn_cuda::jit
