#include "process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <optional>
#include <string_view>
#include <thread>

#include "files.hpp"
#include "fork.hpp"
#include "interrupt.hpp"

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

// Reads until end of file; a grandchild may keep the pipe open after the child exits.
std::string read_all(int fd) {
    std::string text;
    std::array<char, 4096> part;
    for (;;) {
        interruption_point();
        pollfd ready{fd, POLLIN, 0};
        if (::poll(&ready, 1, static_cast<int>(kInterruptPoll.count())) <= 0) continue;
        const ssize_t got = ::read(fd, part.data(), part.size());
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return text;
        text.append(part.data(), static_cast<std::size_t>(got));
    }
}

// The status from waitpid(); 0 if the host process reaps children itself.
int wait_for(pid_t child) {
    int status = 0;
    auto pause = std::chrono::milliseconds(1);
    for (;;) {
        const pid_t waited = ::waitpid(child, &status, WNOHANG);
        if (waited == child) return status;
        if (waited < 0 && errno != EINTR) return 0;
        std::this_thread::sleep_for(pause);
        pause = std::min(pause * 2, std::chrono::milliseconds(20));
        interruption_point();
    }
}

// Compilers start subprocesses, all in one process group.
void kill_group(pid_t leader) {
    ::kill(-leader, SIGKILL);
    while (::waitpid(leader, nullptr, 0) < 0 && errno == EINTR) {
    }
}

}  // namespace

ProcessResult run_process(const std::vector<std::string>& arguments, const std::filesystem::path& temporary,
                          std::span<const char* const> without) {
    SpawnSettings settings;
    sigset_t none, defaults;  // do not inherit the host's signal mask and ignored signals
    sigemptyset(&none);
    sigemptyset(&defaults);
    for (int signal : {SIGCHLD, SIGPIPE, SIGINT, SIGTERM}) sigaddset(&defaults, signal);
    posix_spawnattr_setsigmask(&settings.attributes, &none);
    posix_spawnattr_setsigdefault(&settings.attributes, &defaults);
    // A process group of its own only if we kill it ourselves: otherwise the terminal's Ctrl-C must reach it.
    const bool own_group = interruptible();
    posix_spawnattr_setpgroup(&settings.attributes, 0);
    posix_spawnattr_setflags(&settings.attributes, static_cast<short>(POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
                                                                      (own_group ? POSIX_SPAWN_SETPGROUP : 0)));

    ProcessResult result;
    pid_t child = -1;
    std::optional<Descriptor> reader;
    {
        const auto lock = fork_lock();  // a concurrent fork would inherit the write end and keep the pipe open
        int ends[2];
        if (::pipe2(ends, O_CLOEXEC) != 0) {
            result.output = errno_text(errno);
            return result;
        }
        reader.emplace(ends[0]);
        const Descriptor writer(ends[1]);
        posix_spawn_file_actions_addopen(&settings.actions, 0, "/dev/null", O_RDONLY, 0);
        posix_spawn_file_actions_adddup2(&settings.actions, writer.get(), 1);
        posix_spawn_file_actions_adddup2(&settings.actions, writer.get(), 2);
        std::vector<std::string> argument_copy = arguments, environment = child_environment(temporary, without);
        const int error = ::posix_spawn(&child, arguments.front().c_str(), &settings.actions, &settings.attributes,
                                        pointers(argument_copy).data(), pointers(environment).data());
        if (error != 0) {
            result.output = errno_text(error);
            return result;
        }
    }
    result.started = true;
    const unsigned generation = fork_generation();
    int status = 0;
    try {
        result.output = read_all(reader->get());
        status = wait_for(child);
    } catch (...) {
        if (own_group && fork_generation() == generation) kill_group(child);
        throw;
    }
    result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return result;
}

}  // namespace gdn_cuda::jit
