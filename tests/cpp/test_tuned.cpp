// Stored winners of tuning: damage, races, foreign devices and versions, and heuristics that consult them. No GPU.
#include <sys/stat.h>

#include <algorithm>

#include "families/structured/cauchy.hpp"
#include "families/structured/vandermonde.hpp"
#include "jit/cache_place.hpp"
#include "jit/env.hpp"
#include "jit/errors.hpp"
#include "jit/toolchain.hpp"
#include "jit/tuned_store.hpp"
#include "launch/tunables.hpp"
#include "launch/tuned.hpp"
#include "support.hpp"

namespace gdn_cuda::test {
namespace {

namespace fs = std::filesystem;
using jit::DeviceTraits;
using jit::Level;
using jit::TunedEntry;
using jit::TunedStore;
using structured::CauchyProblem;
using structured::CauchyTuning;
using structured::CauchyWinners;
using structured::VandermondeProblem;
using structured::VandermondeTuning;

const char* const kCauchy = CauchyTuning::kernels.front();
const CauchyProblem kS4{.rows = 1024, .shared_rows = 1, .points = 16384, .io = DType::c64, .conj = true, .poles = 32};
const VandermondeProblem kS4d{.rows = 1024, .steps = 16384, .io = DType::c64, .poles = 32};

// A winner that the heuristic would not have chosen.
TunedEntry entry_of(const std::string& version = "1-a", const DeviceTraits& device = {}) {
    const auto all = structured::cauchy_candidates(kS4, device);
    return {kCauchy, to_text(kS4), to_text(all.back()), to_text(all.front()), 12.5, 20.25, device.name, device.multiprocessors,
            version};
}

TEST(Fields, TextAndBack) {
    EXPECT_EQ(to_text(kS4), "{.rows = 1024, .shared_rows = 1, .points = 16384, .poles = 32, .io = DType::c64, .conj = true}");
    EXPECT_EQ(from_text<CauchyProblem>(to_text(kS4)), kS4);
    EXPECT_EQ(from_text<VandermondeProblem>(to_text(kS4d)), kS4d);
    for (const char* text :
         {"", "{}", "{.rows = 1024}", "{.rows = 1, .steps = 2, .poles = 3, .io = DType::f7}",
          "{.rows = x, .steps = 2, .poles = 3, .io = DType::c64}", "{.rows = 1, .steps = 2, .poles = 3, .io = DType::c64} "})
        EXPECT_FALSE(from_text<VandermondeProblem>(text)) << text;
}

TEST(TunedFile, RoundTripAndEveryTruncationAndFlippedBitIsDetected) {
    const TunedEntry entry = entry_of();
    const std::string text = jit::to_file(entry);
    const auto back = jit::from_file(text);
    ASSERT_TRUE(back);
    EXPECT_EQ(jit::to_file(*back), text);
    EXPECT_EQ(back->us, 12.5);
    EXPECT_EQ(back->multiprocessors, 132);
    for (std::size_t size = 0; size < text.size(); ++size) EXPECT_FALSE(jit::from_file(text.substr(0, size))) << size;
    for (std::size_t bit = 0; bit < 8 * text.size(); ++bit) {
        std::string flipped = text;
        flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
        EXPECT_FALSE(jit::from_file(flipped)) << bit;
    }
    EXPECT_FALSE(jit::from_file(text + text));
    TunedEntry wrong = entry;
    wrong.device = "two\nlines";
    EXPECT_CONTAINS(message_of([&] { jit::to_file(wrong); }), "tuned entry: device: expected one line of text");
}

struct TunedStoreTest : ::testing::Test {
    TemporaryFolder folder;
    TunedStore store{folder / "tuned"};
    CapturedLog log;

    std::vector<TunedEntry> found() const { return store.entries(kCauchy, {}, "1-a"); }
};

TEST_F(TunedStoreTest, WrittenIsFoundPrivateAndRemoved) {
    EXPECT_TRUE(found().empty());
    ASSERT_EQ(store.write(entry_of()), "");
    ASSERT_EQ(found().size(), 1u);
    EXPECT_EQ(found()[0].choice, entry_of().choice);
    struct stat status {};
    ASSERT_EQ(::stat(store.path_of(entry_of()).c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600u);
    TunedEntry again = entry_of();
    again.us = 11;
    ASSERT_EQ(store.write(again), "");
    ASSERT_EQ(found().size(), 1u) << "of one problem, the last one stays";
    EXPECT_EQ(found()[0].us, 11);
    EXPECT_TRUE(store.entries(VandermondeTuning::kernels.front(), {}, "1-a").empty());
    EXPECT_TRUE(log.at_least(Level::info).empty());

    const std::string file = store.list().at(0).file;
    EXPECT_CONTAINS(message_of([&] { store.remove("../" + file); }), "expected the name of a file <kernel>-<key>.tuned");
    EXPECT_TRUE(store.remove(file));
    EXPECT_FALSE(store.remove(file));
    EXPECT_TRUE(found().empty());
}

TEST_F(TunedStoreTest, WhatIsForeignOrBrokenIsIgnoredWithOneLine) {
    DeviceTraits half, other;
    half.multiprocessors = 66;
    other.name = "NVIDIA A100";
    for (const TunedEntry& entry : {entry_of("1-a", half), entry_of("1-a", other), entry_of("1-b")})
        ASSERT_EQ(store.write(entry), "");
    const std::string broken = "broken-" + key_of('b') + ".tuned", renamed = "renamed-" + key_of('c') + ".tuned";
    write(folder / "tuned" / broken, "gdn_cuda tuned 1\nkernel: x\n");
    write(folder / "tuned" / renamed, jit::to_file(entry_of()));
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(found().empty());
    EXPECT_EQ(log.at_least(Level::info).size(), 5u) << "one line each, however often they are read";
    EXPECT_EQ(log.at_least(Level::warning).size(), 2u) << "another device's winners cause no warning";
    EXPECT_EQ(log.count("tuned on NVIDIA H200 (66 multiprocessors), version 1-a, this is NVIDIA H200 (132"), 1u);
    EXPECT_EQ(log.count("version 1-b, this is version 1-a"), 1u);
    EXPECT_EQ(log.count(broken + ": it is truncated; it is ignored"), 1u);
    EXPECT_EQ(log.count(renamed + ": its name is that of another entry"), 1u);
    EXPECT_EQ(store.entries(kCauchy, half, "1-a").size(), 1u);
}

TEST_F(TunedStoreTest, WhatTuneDidNotWriteIsNeitherReadNorRemoved) {
    const fs::path tuned = folder / "tuned";
    const std::string text = "text-" + key_of('a') + ".tuned", link = "link-" + key_of('b') + ".tuned",
                      fifo = "fifo-" + key_of('c') + ".tuned", huge = "huge-" + key_of('d') + ".tuned";
    write(tuned / "my notes.tuned", "gdn_cuda tuned 1\n");
    write(tuned / text, "a user's own");
    write(folder / "elsewhere", jit::to_file(entry_of()));
    fs::create_symlink(folder / "elsewhere", tuned / link);
    ASSERT_EQ(::mkfifo((tuned / fifo).c_str(), 0600), 0);
    write(tuned / huge, "gdn_cuda tuned 1\n");
    fs::resize_file(tuned / huge, std::uintmax_t{1} << 40);
    const auto listed = store.list();
    ASSERT_EQ(listed.size(), 4u);
    for (const jit::TunedFile& file : listed) {
        EXPECT_NE(file.problem, "") << file.file;
        EXPECT_FALSE(store.remove(file.file)) << file.file;
        EXPECT_TRUE(fs::exists(fs::symlink_status(tuned / file.file))) << file.file;
    }
    EXPECT_CONTAINS(message_of([&] { store.remove("my notes.tuned"); }), "expected the name of a file <kernel>-<key>.tuned");
    fs::create_directory_symlink(folder.path(), folder / "linked");
    EXPECT_CONTAINS(TunedStore(folder / "linked").write(entry_of()), "is not a folder");
}

TEST_F(TunedStoreTest, ConcurrentWritersDoNotCorruptFiles) {
    constexpr int kWriters = 6, kRounds = 40;
    std::vector<pid_t> writers;
    for (int i = 0; i < kWriters; ++i)
        writers.push_back(start_child([&, i] {
            for (int round = 0; round < kRounds; ++round) {
                TunedEntry entry = entry_of();  // one problem that all write, and one of each its own
                entry.us = 1 + i + round;
                if (!store.write(entry).empty()) return 1;
                entry.problem += std::to_string(i);
                if (!store.write(entry).empty()) return 1;
            }
            return 0;
        }));
    for (int look = 0; look < 200; ++look)
        for (const jit::TunedFile& file : store.list()) EXPECT_TRUE(file.entry) << file.file << ": " << file.problem;
    for (const pid_t writer : writers) EXPECT_EQ(wait_for(writer), 0);
    EXPECT_EQ(store.list().size(), kWriters + 1u);
    EXPECT_EQ(found().size(), kWriters + 1u);
}

TEST_F(TunedStoreTest, NoFolderIsSaid) {
    const TunedStore nowhere({});
    EXPECT_EQ(nowhere.write(entry_of()), "there is no usable cache directory");
    EXPECT_TRUE(nowhere.list().empty());
    EXPECT_FALSE(nowhere.remove("x-" + key_of('a') + ".tuned"));
    write(folder / "file", "");
    EXPECT_CONTAINS(TunedStore(folder / "file" / "tuned").write(entry_of()), "cannot make");
}

// Runs in a new process whose cache is in `cache` and whose library is this tree's.
std::string with_cache(const fs::path& cache, Environment more, const std::function<std::string()>& body,
                       const fs::path& library = GDN_TEST_LIBRARY_INCLUDE) {
    more.emplace_back("GDN_JIT_CACHE_DIR", cache.string());
    const ChildResult result = in_child(more, [&] {
        jit::init(library, {});
        return body();
    });
    return result.value + result.stderr_text;
}

std::string store_here() {
    return TunedStore::to_write().write(entry_of(tunable(kCauchy).version()));
}
std::string explained() {
    return explain_cauchy(kS4, {}, tuned<CauchyTuning>({}));
}
const char* const kOwn = "4 points a thread give";  // from the heuristic's own explanation

TEST(Tuned, ReadingCreatesNoFolderAndIgnoresOneThatOthersMayWrite) {
    const TemporaryFolder folder;
    const fs::path cache = folder / "cache";
    EXPECT_CONTAINS(with_cache(cache, {}, explained), kOwn);
    EXPECT_FALSE(fs::exists(cache)) << "a process that only asks leaves no trace";
    EXPECT_EQ(with_cache(cache, {}, store_here), "");
    EXPECT_CONTAINS(with_cache(cache, {}, explained), "tuned on this device: " + entry_of().choice + " took 12.50 us");
    ::chmod(cache.c_str(), 0777);
    EXPECT_CONTAINS(with_cache(cache, {}, explained), kOwn);
}

TEST(Tuned, TheSwitchAndTheDeviceAndTheVersion) {
    const TemporaryFolder folder;
    const fs::path cache = folder / "cache";
    ASSERT_EQ(with_cache(cache, {}, store_here), "");
    EXPECT_CONTAINS(with_cache(cache, {{"GDN_TUNED", "0"}}, explained), kOwn);
    EXPECT_CONTAINS(with_cache(cache, {{"GDN_TUNED", "1"}}, explained), "tuned on this device");
    EXPECT_CONTAINS(with_cache(cache, {{"GDN_TUNED", "maybe"}}, explained), "GDN_TUNED: expected 0 or 1");
    EXPECT_CONTAINS(with_cache(cache, {{"GDN_LOG_LEVEL", "info"}},
                               [] {
                                   const DeviceTraits other = DeviceTraits::for_arch("sm_80");
                                   return explain_cauchy(kS4, other, tuned<CauchyTuning>(other));
                               }),
                    "it is ignored");
    CapturedLog log;
    EXPECT_TRUE(TunedStore(cache / "tuned").entries(kCauchy, {}, "0.0.1-old").empty());
    EXPECT_EQ(log.count("this is version 0.0.1-old; it is ignored"), 1u);
}

TEST(Tuned, AWinnerIsOfTheKernelsThatItsChoicesRun) {
    const TemporaryFolder folder;
    const fs::path cache = folder / "cache", library = folder / "include", kernels = library / "gdn_cuda/kernels";
    fs::copy(GDN_TEST_LIBRARY_INCLUDE, library, fs::copy_options::recursive);
    ASSERT_EQ(with_cache(cache, {}, store_here, library), "");
    const auto edit = [](const fs::path& header) { write(header, read(header) + "// edited\n"); };
    for (const char* other : {"gdn/decode.cuh", "structured/vandermonde.cuh", "structured/cauchy_backward.cuh"})
        edit(kernels / other);
    EXPECT_CONTAINS(with_cache(cache, {}, explained, library), "tuned on this device");
    for (const char* own : {"structured/cauchy/plan.cuh", "structured/cauchy_batch.cuh"}) {
        const std::string before = read(kernels / own);
        edit(kernels / own);
        EXPECT_CONTAINS(with_cache(cache, {}, explained, library), kOwn) << own;
        write(kernels / own, before);
        EXPECT_CONTAINS(with_cache(cache, {}, explained, library), "tuned on this device") << own;
    }
}

TEST(Tuned, FilesAreReadOnceAProcess) {
    const TemporaryFolder folder;
    const std::string seen = with_cache(folder / "cache", {}, [&]() -> std::string {
        const auto tuned_now = [] { return explained().starts_with("tuned") ? "yes " : "no "; };
        std::string text = tuned_now();
        text += store_here();
        text += tuned_now();
        TunedTables<CauchyTuning>::forget();
        text += tuned_now();
        fs::remove_all(folder / "cache");
        return text + tuned_now();
    });
    EXPECT_EQ(seen, "no no yes yes ");
}

TEST(Tuned, AStandInHasTheWinnersOfItsNameAndLeavesThoseOfDevicesAlone) {
    const TemporaryFolder folder;
    const std::string seen = with_cache(folder / "cache", {}, [&]() -> std::string {
        std::string text = store_here();
        for (const char* arch : {"sm_90a", "sm_80", "sm_90a"}) {
            DeviceTraits stand_in = DeviceTraits::for_arch(arch);
            stand_in.ordinal = jit::kStandIn;
            text += explain_cauchy(kS4, stand_in, tuned<CauchyTuning>(stand_in)).starts_with("tuned") ? "yes " : "no ";
        }
        fs::remove_all(folder / "cache");
        return text + (tuned<CauchyTuning>({}) == nullptr ? "none" : "kept");
    });
    EXPECT_EQ(seen, "yes no yes none") << "no file was read for device 0 before";
}

TEST(Tuned, AChoiceThatIsNoneOfTheCandidatesIsIgnored) {
    const TemporaryFolder folder;
    const std::string seen = with_cache(folder / "cache", {}, [&] {
        TunedEntry entry = entry_of(tunable(kCauchy).version());
        entry.choice = "{.in_batches = false, .rows = 3, .points = 1, .turns = 1}";
        const TunedStore store = TunedStore::to_write();
        std::string text = store.write(entry);
        entry.problem = "no problem at all";
        text += store.write(entry);
        return text + explained();
    });
    EXPECT_CONTAINS(seen, kOwn);
    EXPECT_CONTAINS(seen, ".rows = 3, .points = 1, .turns = 1} is not one of its choices; it is ignored");
    EXPECT_CONTAINS(seen, "for no problem at all");
}

TEST(Tuned, AnAttemptDecidesUntilItIsForgotten) {
    const TemporaryFolder folder;
    const std::string seen = with_cache(folder / "cache", {}, [&]() -> std::string {
        const Tunable& cauchy = tunable(kCauchy);
        const std::string problem = to_text(kS4), last = cauchy.candidates(problem, {}).back();
        cauchy.attempt(problem, last, {});
        std::string text = cauchy.attempted(0) ? "too early" : "";
        CauchyProblem other = kS4;
        other.poles = 64;
        if (cauchy_choice(other, {}, tuned<CauchyTuning>({})) != cauchy_choice(other, {})) text += "decides about another";
        if (cauchy.attempted(0)) text += "counted another";
        if (to_text(cauchy_choice(kS4, {}, tuned<CauchyTuning>({}))) != last) text += "does not decide";
        if (!cauchy.attempted(0)) text += "not counted";
        cauchy.forget();
        if (cauchy.attempted(0) || cauchy_choice(kS4, {}, tuned<CauchyTuning>({})) != cauchy_choice(kS4, {})) text += "stays";
        return text;
    });
    EXPECT_EQ(seen, "");
}

// A file of stored winners may name any problem: sizes of 0, of which heuristics would divide, are refused.
TEST(Tuned, AProblemThatAKernelDoesNotRunIsRefused) {
    for (const char* kernel : {"conv/causal_step", "gdn/decode", "gdn/prefill"}) {
        const Tunable& one = tunable(kernel);
        const std::string expected =
            fmt::format("{}: problem: expected one that this kernel runs, got {}", kernel, one.problem);
        EXPECT_EQ(message_of([&] { one.candidates(one.problem, {}); }), expected);
        EXPECT_EQ(message_of([&] { one.explain(one.problem, {}); }), expected);
    }
}

TEST(Tuned, EveryTunableSaysWhatIsWrong) {
    for (const Tunable& one : tunables()) {
        EXPECT_CONTAINS(message_of([&] { one.candidates("{}", {}); }),
                        one.kernel + ": problem: expected a form like " + one.problem);
        EXPECT_CONTAINS(message_of([&] { one.candidates("{}", {}); }), "got {}");
    }
    EXPECT_CONTAINS(
        message_of([] { tunable("gdn/verify"); }),
        "expected a kernel among conv/causal_step, gdn/decode, gdn/prefill, scan/diagonal_scan, scan/selective_forward, "
        "scan/selective_step, structured/cauchy, structured/vandermonde, got gdn/verify");
    const Tunable& cauchy = tunable(kCauchy);
    EXPECT_CONTAINS(message_of([&] { cauchy.attempt(to_text(kS4), "{}", {}); }), "choice: expected one of {.in_batches = ");
}

}  // namespace
}  // namespace gdn_cuda::test
