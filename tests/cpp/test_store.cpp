// The cache on disk: damage, races, full folders, other users' files. Real files, real processes.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <set>

#include "jit/draft.hpp"
#include "jit/errors.hpp"
#include "jit/store.hpp"
#include "support.hpp"

namespace gdn_cuda::test {
namespace {

namespace fs = std::filesystem;
using jit::Cubin;
using jit::KeyLock;
using jit::kNoLimit;
using jit::Level;
using jit::Store;

std::set<std::string> names_in(const fs::path& folder) {
    std::set<std::string> result;
    for (const auto& entry : fs::directory_iterator(folder)) result.insert(entry.path().filename());
    return result;
}

TEST(Seal, RoundTripAndReadableAsElf) {
    const Cubin cubin = cubin_of("_Z1kv");
    const std::string file = jit::seal(cubin, key_of('a'));
    EXPECT_TRUE(file.starts_with(cubin.bytes));
    const auto back = jit::unseal(file, key_of('a'));
    ASSERT_TRUE(back);
    EXPECT_EQ(back->bytes, cubin.bytes);
    EXPECT_EQ(back->symbol, "_Z1kv");
    EXPECT_TRUE(jit::unseal(file, ""));
    std::string why;
    EXPECT_FALSE(jit::unseal(file, key_of('b'), &why));
    EXPECT_EQ(why, "it is the entry of another key");
    EXPECT_CONTAINS(message_of([&] { jit::seal(cubin, "short"); }), "expected 64 characters, got 5");
}

TEST(Seal, EveryTruncationAndFlippedBitIsDetected) {
    const std::string file = jit::seal(cubin_of("k"), key_of('a'));
    for (std::size_t size = 0; size < file.size(); ++size) EXPECT_FALSE(jit::unseal(file.substr(0, size), key_of('a'))) << size;
    for (std::size_t bit = 0; bit < 8 * file.size(); bit += 3) {
        std::string flipped = file;
        flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
        EXPECT_FALSE(jit::unseal(flipped, "")) << bit;
    }
    EXPECT_FALSE(jit::unseal(file + "x", key_of('a')));
    EXPECT_FALSE(jit::unseal("x" + file, key_of('a')));
    EXPECT_FALSE(jit::unseal(file + file, key_of('a')));
}

struct StoreTest : ::testing::Test {
    TemporaryFolder folder;
    fs::path place = folder / "cache";
    Store store{place, kNoLimit};
    CapturedLog log;
    const Cubin cubin = cubin_of("k");

    fs::path entry(char key) const { return store.entry_path("gdn/toy", key_of(key)); }
    bool publish(char key) { return publish_in(store, key); }
    bool publish_in(Store& any, char key) const { return !any.publish("gdn/toy", key_of(key), cubin); }
    bool hit(char key) { return store.load("gdn/toy", key_of(key)).has_value(); }
};

TEST_F(StoreTest, PublishedIsFoundAndPrivate) {
    EXPECT_FALSE(hit('a'));
    ASSERT_TRUE(publish('a'));
    EXPECT_EQ(entry('a').filename(), "gdn-toy-" + key_of('a') + ".cubin");
    EXPECT_TRUE(hit('a'));
    EXPECT_FALSE(hit('b'));
    struct stat status {};
    ASSERT_EQ(::stat(place.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0700u);
    ASSERT_EQ(::stat(entry('a').c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600u);
    EXPECT_EQ(names_in(place), std::set<std::string>{entry('a').filename()}) << "no other file is left";
    EXPECT_TRUE(log.at_least(Level::warning).empty());
}

TEST_F(StoreTest, ADamagedEntryIsAMissReplacedAndMentionedOnce) {
    const std::string whole = jit::seal(cubin, key_of('a')), foreign = jit::seal(cubin, key_of('b'));
    int round = 0;
    for (const std::string& damaged : {std::string(), whole.substr(0, whole.size() / 2), whole.substr(0, whole.size() - 1),
                                       std::string("#!/bin/sh\n"), foreign, std::string(1 << 20, '\0')}) {
        write(entry('a'), damaged);
        EXPECT_FALSE(hit('a')) << ++round;
        EXPECT_EQ(read(entry('a')), damaged) << round << ": only a good one replaces it";
        ASSERT_TRUE(publish('a'));
        EXPECT_TRUE(hit('a'));
    }
    write(entry('c'), "x");
    EXPECT_FALSE(hit('c'));
    write(entry('c'), "x");
    EXPECT_FALSE(hit('c'));
    EXPECT_EQ(log.count(key_of('c')), 1u);
}

TEST_F(StoreTest, AnEntryThatIsNoRegularFileIsAMissAndStays) {
    fs::create_directories(entry('a'));
    ASSERT_EQ(::mkfifo(entry('b').c_str(), 0600), 0);
    write(folder / "elsewhere", jit::seal(cubin, key_of('c')));
    fs::create_symlink(folder / "elsewhere", entry('c'));
    for (char key : {'a', 'b', 'c'}) {
        EXPECT_FALSE(hit(key)) << key;
        const auto refusal = store.publish("gdn/toy", key_of(key), cubin);
        ASSERT_TRUE(refusal) << key;
        EXPECT_CONTAINS(refusal->reason, "is in the way: it is not a regular file");
        EXPECT_FALSE(refusal->another_place) << "one occupied name does not mean that the disk is bad";
    }
    EXPECT_EQ(store.list(true).size(), 3u);
    for (const auto& info : store.list(true)) EXPECT_NE(info.problem, "");
    EXPECT_EQ(store.clear(), 0u);
    EXPECT_TRUE(fs::is_directory(entry('a')) && fs::is_fifo(entry('b')) && fs::is_symlink(entry('c')));
    EXPECT_TRUE(fs::exists(folder / "elsewhere"));
}

TEST_F(StoreTest, AnEntryTooLargeToBeOneIsAMissThatIsNeverRead) {
    write(entry('a'), "x");
    fs::resize_file(entry('a'), std::uintmax_t{1} << 40);  // sparse
    EXPECT_FALSE(hit('a'));
    EXPECT_CONTAINS(store.list(true).at(0).problem, "more than the");
    EXPECT_TRUE(publish('a'));
    EXPECT_TRUE(hit('a'));
}

TEST_F(StoreTest, AnEntryThatOthersMayHaveWrittenIsAMiss) {
    ASSERT_TRUE(publish('a') && publish('b'));
    ASSERT_EQ(::chmod(entry('a').c_str(), 0666), 0);
    EXPECT_FALSE(hit('a'));
    EXPECT_EQ(log.count("others may write it (mode 0666)"), 1u);
    if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
    ASSERT_EQ(::chown(entry('b').c_str(), kNobody, kNobody), 0);
    EXPECT_FALSE(hit('b'));
    EXPECT_EQ(log.count("it belongs to user 65534"), 1u);
}

TEST_F(StoreTest, ASealedFileWithoutAKernelIsAMiss) {
    for (const Cubin& sealed :
         {Cubin{"eighteen bytes: no", "k"}, Cubin{cubin.bytes, "another"}, Cubin{tiny_cubin({"k", "l"}), "k"}}) {
        write(entry('a'), jit::seal(sealed, key_of('a')));
        EXPECT_FALSE(hit('a'));
        EXPECT_NE(store.list(true).at(0).problem, "");
        EXPECT_FALSE(Store(place, 0, Store::Access::read_only).load("gdn/toy", key_of('a')));
    }
}

TEST_F(StoreTest, AReadOnlyStoreIsVerifiedAndNotChanged) {
    ASSERT_TRUE(publish('a'));
    write(entry('b'), "broken");
    Store baked(place, 0, Store::Access::read_only);
    EXPECT_TRUE(baked.load("gdn/toy", key_of('a')));
    EXPECT_FALSE(baked.load("gdn/toy", key_of('b')));
    EXPECT_TRUE(fs::exists(entry('b')));
    EXPECT_EQ(log.count("passed over"), 1u);
    EXPECT_FALSE(publish_in(baked, 'd'));
    EXPECT_EQ(baked.clear(), 0u);
}

TEST_F(StoreTest, NoFailureIsEverPublished) {
    for (const Cubin& bad : {Cubin{"", ""}, Cubin{"text", "k"}, Cubin{tiny_cubin({}), ""}, Cubin{tiny_cubin({"k", "l"}), "k"},
                             Cubin{tiny_cubin({"other"}), "k"}, Cubin{cubin.bytes.substr(0, cubin.bytes.size() - 1), "k"}}) {
        EXPECT_FALSE(message_of([&] { store.publish("gdn/toy", key_of('a'), bad); }).empty());
        EXPECT_FALSE(fs::exists(entry('a')));
    }
}

TEST_F(StoreTest, AFullDiskLeavesNoPartialEntryAndAllowsAnotherPlace) {
    ASSERT_TRUE(publish('a'));
    Cubin large = cubin;
    large.bytes.append(4096, '\0');
    const auto result = in_child({}, [&] {
        ::signal(SIGXFSZ, SIG_IGN);
        const rlimit limit{2048, 2048};
        ::setrlimit(RLIMIT_FSIZE, &limit);
        const auto refusal = store.publish("gdn/toy", key_of('b'), large);
        const rlimit none{RLIM_INFINITY, RLIM_INFINITY};
        ::setrlimit(RLIMIT_FSIZE, &none);
        return refusal ? refusal->reason + (refusal->another_place ? "; another place" : "") : "published";
    });
    EXPECT_EQ(result.value, "cannot write a file in " + place.string() + ": File too large; another place");
    EXPECT_EQ(names_in(place), std::set<std::string>{entry('a').filename()});
    EXPECT_TRUE(hit('a'));
}

TEST_F(StoreTest, TheLeastRecentlyUsedGoesFirst) {
    const std::uint64_t one = jit::seal(cubin, key_of('a')).size();
    Store small(place, 3 * one);
    for (char key : {'a', 'b', 'c'}) ASSERT_TRUE(publish_in(small, key));
    set_age(entry('a'), std::chrono::hours(3));
    set_age(entry('b'), std::chrono::hours(2));
    set_age(entry('c'), std::chrono::hours(1));
    EXPECT_TRUE(small.load("gdn/toy", key_of('a')));  // used now
    ASSERT_TRUE(publish_in(small, 'd'));
    EXPECT_TRUE(fs::exists(entry('a')));
    EXPECT_FALSE(fs::exists(entry('b')));
    EXPECT_TRUE(fs::exists(entry('c')));
    EXPECT_TRUE(fs::exists(entry('d')));

    Store tiny(place, 1);
    ASSERT_TRUE(publish_in(tiny, 'e'));
    EXPECT_TRUE(fs::exists(entry('e'))) << "never the entry just written";
    EXPECT_EQ(tiny.list(false).size(), 1u);
}

TEST_F(StoreTest, DumpsCountAndGoWithTheirEntry) {
    Store small(place, 64 << 10);
    ASSERT_TRUE(publish_in(small, 'a'));
    for (const char* suffix : {".cu", ".ptx", ".sass"})
        EXPECT_EQ(small.write_beside("gdn/toy", key_of('a'), suffix, std::string(40 << 10, 'x')), "");
    set_age(entry('a'), std::chrono::hours(1));
    ASSERT_TRUE(publish_in(small, 'b'));
    for (const char* suffix : {".cubin", ".cu", ".ptx", ".sass"})
        EXPECT_FALSE(fs::exists(entry('a').replace_extension(suffix))) << suffix;
    EXPECT_TRUE(fs::exists(entry('b')));
}

TEST_F(StoreTest, EvictionCountsAndTakesOnlySealedEntries) {
    const std::string stem = place / ("my-" + std::string(63, 'a'));
    const std::vector<fs::path> others = {stem + "z.cubin", stem + "a.cubin", stem + "a.cu",
                                          entry('b').replace_extension(".cu"), place / "tmp" / "thesis" / "chapter1.tex"};
    for (const fs::path& path : others) {
        write(path, std::string(100 << 10, 'x'));
        set_age(path, std::chrono::hours(24 * 365));
    }
    Store small(place, 64 << 10);
    for (char key : {'b', 'c', 'd'}) ASSERT_TRUE(publish_in(small, key));
    EXPECT_TRUE(fs::exists(entry('b')) && fs::exists(entry('c'))) << "other files do not count towards our limit";
    set_age(entry('b'), std::chrono::hours(1));
    Store tiny(place, 1);
    ASSERT_TRUE(publish_in(tiny, 'e'));
    EXPECT_FALSE(fs::exists(entry('b')));
    EXPECT_EQ(tiny.clear(), 1u);
    for (const fs::path& path : others) EXPECT_TRUE(fs::exists(path)) << path;
}

// A draft in the folder whose process was killed; its timestamp is two hours in the future, or in the past.
fs::path dead_draft(const fs::path& in, std::chrono::seconds age) {
    std::set<std::string> before = names_in(in);
    const pid_t maker = start_child([&] {
        auto made = jit::TemporaryDirectory::below(in, nullptr);
        write(made->path() / "half", "x");
        ::kill(::getpid(), SIGKILL);
        return 0;
    });
    wait_for(maker);
    for (const std::string& name : names_in(in))
        if (!before.contains(name)) {
            set_age(in / name, age);
            return in / name;
        }
    ADD_FAILURE() << "no draft was left";
    return {};
}

TEST_F(StoreTest, DraftsAreSweptWhenTheirMakerIsDeadWhateverTheClocksSay) {
    fs::create_directories(place / "memo");
    std::vector<fs::path> dead, others;
    for (const auto age : {std::chrono::hours(-2), std::chrono::hours(0), std::chrono::hours(2)}) {
        dead.push_back(dead_draft(place, age));
        dead.push_back(dead_draft(place / "memo", age));
    }
    const std::string dead_name = dead[0].filename(), host = dead_name.substr(16, 16);
    dead.push_back(place / (".gdn_cuda-draft-" + host + "-1-0123456789abcdef"));
    write(dead.back(), "half a cubin, of a maker that never came to lock it");
    fs::create_hard_link(dead.back(), folder / "linked");
    const auto live = jit::TemporaryDirectory::below(place, nullptr);
    ASSERT_TRUE(live);
    write(live->path() / "half", "x");
    set_age(live->path(), std::chrono::hours(2));
    for (const char* name :
         {"old", "memo/1-killed", ".gdn_cuda-draft-mine", ".gdn_cuda-draft-0123456789abcdef-1-0123456789abcdeg"}) {
        others.push_back(place / name / "thesis.tex");
        write(others.back(), "x");
        set_age(others.back().parent_path(), std::chrono::hours(24));
    }
    const fs::path on_another_host = place / ".gdn_cuda-draft-0123456789abcdef-1-0123456789abcdef";
    write(on_another_host, "x");

    ASSERT_TRUE(publish('a'));
    EXPECT_TRUE(fs::exists(dead.back())) << "it has a second name, which may be anybody's";
    fs::remove(folder / "linked");
    ASSERT_TRUE(publish('b'));
    for (const fs::path& path : dead) EXPECT_FALSE(fs::exists(path)) << path;
    EXPECT_TRUE(fs::exists(on_another_host));
    store.clear();
    EXPECT_FALSE(fs::exists(on_another_host)) << "only an explicit clear removes it";
    EXPECT_TRUE(fs::exists(live->path() / "half"));
    for (const fs::path& path : others) EXPECT_TRUE(fs::exists(path)) << path;
}

TEST_F(StoreTest, LinksOutOfTheCacheAreNotFollowed) {
    ASSERT_TRUE(publish('a'));
    const fs::path mine = folder / "mine";
    for (const char* name : {"x.memo", "ours-0123456789abcdef.memo", ".gdn_cuda-draft-0123456789abcdef-1-0123456789abcdef"})
        write(mine / name, "gdn_cuda memo 1\n");
    write(mine / "text", "precious");
    for (const char* name : {"memo", "tuned", "locks"}) fs::create_directory_symlink(mine, place / name);
    const std::set<std::string> before = names_in(mine);
    fs::create_symlink(mine / "text", entry('b').replace_extension(".cu"));
    EXPECT_CONTAINS(store.write_beside("gdn/toy", key_of('b'), ".cu", "code"), "is in the way");
    EXPECT_FALSE(KeyLock(place, key_of('a')).held());
    ASSERT_TRUE(publish('c'));
    EXPECT_EQ(store.clear(), 2u);
    EXPECT_EQ(names_in(mine), before);
    EXPECT_EQ(read(mine / "text"), "precious");
}

TEST_F(StoreTest, ListVerifyAndClear) {
    EXPECT_TRUE(store.list(true).empty());
    for (char key : {'b', 'a'}) ASSERT_TRUE(publish(key));
    write(entry('c'), "broken");
    fs::copy(entry('a'), entry('d'));  // valid bytes under a wrong name
    set_age(entry('b'), std::chrono::hours(2));
    write(place / "memo" / "m.memo", "gdn_cuda memo 1\n");
    write(place / "memo" / "mine.memo", "not ours");
    { const KeyLock lock(place, key_of('a')); }

    const auto entries = store.list(true);
    ASSERT_EQ(entries.size(), 4u);
    EXPECT_EQ(entries[0].file, entry('a').filename());
    EXPECT_EQ(entries[0].problem, "");
    EXPECT_EQ(entries[0].bytes, fs::file_size(entry('a')));
    EXPECT_NEAR(entries[1].age_seconds, 7200, 60);
    EXPECT_NE(entries[2].problem, "");
    EXPECT_EQ(entries[3].problem, "it is the entry of another key");
    EXPECT_EQ(store.list(false)[2].problem, "");

    write(place / "notes.txt", "not ours");
    write(place / "users.cubin", "not ours either");
    EXPECT_EQ(store.clear(), 2u);
    EXPECT_EQ(store.list(false).size(), 2u) << "a file without the footer of the entry of its name may be anybody's";
    EXPECT_EQ(names_in(place / "memo"), std::set<std::string>{"mine.memo"});
    EXPECT_TRUE(fs::exists(place / "locks" / (key_of('a') + ".lock")));
    EXPECT_TRUE(fs::exists(place / "notes.txt") && fs::exists(place / "users.cubin"));
}

TEST_F(StoreTest, AnExportIsForEveryoneToRead) {
    ::umask(022);
    Store target(folder / "out" / "prebuilt", kNoLimit, Store::Access::exported);
    ASSERT_TRUE(publish_in(target, 'a'));
    const fs::path file = target.entry_path("gdn/toy", key_of('a'));
    struct stat status {};
    ASSERT_EQ(::stat(file.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0644u);
    ASSERT_EQ(::stat(file.parent_path().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0755u);
    EXPECT_EQ(std::distance(fs::directory_iterator(file.parent_path()), fs::directory_iterator()), 1) << "only entries";
}

TEST_F(StoreTest, ManyProcessesWriteReadAndEvictAtOnce) {
    constexpr int kProcesses = 8, kRounds = 40;
    const std::uint64_t one = jit::seal(cubin, key_of('a')).size();
    std::vector<pid_t> children;
    for (int process = 0; process < kProcesses; ++process)
        children.push_back(start_child([&, process] {
            int bad = 0, complaints = 0;
            jit::set_log_sink([&](Level level, const std::string&) { complaints += level >= Level::warning; });
            Store mine(place, 3 * one);
            for (int round = 0; round < kRounds; ++round) {
                const char key = static_cast<char>('a' + (process + round) % 6);
                if (!publish_in(mine, key)) ++bad;
                for (char other = 'a'; other < 'g'; ++other) {
                    const auto found = mine.load("gdn/toy", key_of(other));
                    if (found && found->bytes != cubin.bytes) ++bad;
                }
                mine.list(true);
            }
            return bad + complaints;
        }));
    for (pid_t child : children) EXPECT_EQ(wait_for(child), 0);
    for (const auto& info : store.list(true)) EXPECT_EQ(info.problem, "");
}

}  // namespace
}  // namespace gdn_cuda::test
