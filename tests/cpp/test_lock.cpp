// The lock of a key: one holder at a time, even if processes die or files disappear. Real files, real processes.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "jit/store.hpp"
#include "support.hpp"

namespace gdn_cuda::test {
namespace {

namespace fs = std::filesystem;
using jit::KeyLock;
using jit::Level;

struct Lock : ::testing::Test {
    TemporaryFolder folder;
    const std::string key = key_of('a');
};

TEST_F(Lock, OneAtATime) {
    const fs::path counter = folder / "counter";
    write(counter, "0");
    std::vector<pid_t> children;
    for (int i = 0; i < 8; ++i)
        children.push_back(start_child([&] {
            for (int round = 0; round < 10; ++round) {
                const KeyLock lock(folder.path(), key);
                const int seen = std::stoi(read(counter));
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
                write(counter, std::to_string(seen + 1));
            }
            return 0;
        }));
    for (pid_t child : children) EXPECT_EQ(wait_for(child), 0);
    EXPECT_EQ(read(counter), "80");
    EXPECT_TRUE(fs::exists(folder / "locks" / (key + ".lock"))) << "never unlinked";
    EXPECT_EQ(read(folder / "locks" / (key + ".lock")), "") << "no holder is named when there is none";
}

TEST_F(Lock, OtherKeysDoNotWait) {
    const KeyLock first(folder.path(), key), second(folder.path(), key_of('b'));
    EXPECT_TRUE(first.held() && second.held());
}

TEST_F(Lock, AWaiterNamesTheHolderAndADeadHolderFreesTheLock) {
    const pid_t holder = start_child([&] {
        const KeyLock lock(folder.path(), key);
        write(folder / "held", "");
        ::pause();
        return 0;
    });
    while (!fs::exists(folder / "held")) std::this_thread::sleep_for(std::chrono::milliseconds(5));

    std::vector<std::string> warnings;
    jit::set_log_sink([&](Level level, const std::string& text) {
        if (level < Level::warning) return;
        warnings.push_back(text);
        ::kill(holder, SIGKILL);
    });
    const auto start = std::chrono::steady_clock::now();
    const KeyLock lock(folder.path(), key, std::chrono::milliseconds(200));
    const auto waited = std::chrono::steady_clock::now() - start;
    jit::set_log_sink({});
    EXPECT_TRUE(lock.held());
    EXPECT_EQ(wait_for(holder), 128 + SIGKILL);
    ASSERT_EQ(warnings.size(), 1u);
    EXPECT_CONTAINS(warnings[0], "waiting for process " + std::to_string(holder) + " on ");
    EXPECT_GE(waited, std::chrono::milliseconds(200));
}

TEST_F(Lock, AChildForkedMeanwhileDoesNotKeepIt) {
    pid_t child = -1;
    {
        const KeyLock lock(folder.path(), key);
        child = start_child([] {
            ::pause();
            return 0;
        });
    }
    CapturedLog log;
    const KeyLock again(folder.path(), key, std::chrono::milliseconds(500));
    EXPECT_TRUE(log.at_least(Level::warning).empty());
    ::kill(child, SIGKILL);
    wait_for(child);
}

TEST_F(Lock, AFileThatWasNotMadeToBeLockedIsNotWritten) {
    const fs::path locks = folder / "locks", file = locks / (key + ".lock");
    write(folder / "precious", "text");
    fs::create_directories(locks);
    fs::create_symlink(folder / "precious", file);
    EXPECT_FALSE(KeyLock(folder.path(), key).held());
    fs::remove(file);
    fs::create_hard_link(folder / "precious", file);
    EXPECT_FALSE(KeyLock(folder.path(), key).held());
    EXPECT_EQ(read(folder / "precious"), "text");
    fs::remove(file);
    write(file, "a user's own text");
    EXPECT_FALSE(KeyLock(folder.path(), key).held());
    EXPECT_EQ(read(file), "a user's own text");
    fs::remove(file);
    ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
    EXPECT_FALSE(KeyLock(folder.path(), key).held());
    fs::remove(file);
    write(file, "process 1 on a host that lost power");
    EXPECT_TRUE(KeyLock(folder.path(), key).held());
}

TEST_F(Lock, WithoutLockSupportCompilesContinue) {
    EXPECT_FALSE(KeyLock({}, key).held());
    EXPECT_FALSE(KeyLock("/proc/nowhere", key).held());
    write(folder / "locks", "a file");
    EXPECT_FALSE(KeyLock(folder.path(), key).held());
}

}  // namespace
}  // namespace gdn_cuda::test
