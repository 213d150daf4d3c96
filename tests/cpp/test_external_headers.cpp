// The headers of CUDA, CUTLASS and libcu++ that a kernel's key covers: compared with those that a compiler reports, and edited.
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <sstream>
#include <thread>

#include "jit/external_headers.hpp"
#include "jit/own_headers.hpp"
#include "jit/process.hpp"
#include "jit/runtime.hpp"
#include "launch/registry.hpp"
#include "support.hpp"

namespace gdn_cuda::test {
namespace {

namespace fs = std::filesystem;
using jit::ExternalHeaders;
using jit::FileMemo;
using jit::Include;

void settle() {  // until files are old enough for their status to be trusted
    std::this_thread::sleep_for(std::chrono::milliseconds(2100));
}

struct External : ::testing::Test {
    TemporaryFolder folder;
    const fs::path first = folder / "cutlass", second = folder / "cuda", memo = folder / "memo/m";

    void SetUp() override {
        fs::create_directories(first);
        fs::create_directories(second);
    }
    std::string digest(const fs::path& remembered = {}, const Include& include = {"a.h", false}) const {
        return ExternalHeaders({first, second}).digest({include}, remembered);
    }
    // Whether an edit of the header changes the digest.
    bool counts(const fs::path& header) const {
        const std::string before = digest(), text = read(header);
        write(header, text + "// edited\n");
        const bool changes = digest() != before;
        write(header, text);
        EXPECT_EQ(digest(), before);
        return changes;
    }
};

TEST_F(External, WhatIsIncludedCountsAndNothingElse) {
    write(first / "a.h", "#include \"below/b.h\"\n#if 0\n#include <c.h>\n#endif\n// #include <d.h>\n");
    write(first / "below/b.h", "#include \"../e.h\"\n#include <a.h>\n");
    for (const char* name : {"c.h", "d.h", "below/c.h"}) write(second / name, "");
    write(first / "e.h", "");
    for (const char* name : {"a.h", "below/b.h", "e.h"}) EXPECT_TRUE(counts(first / name)) << name;
    EXPECT_TRUE(counts(second / "c.h"));
    EXPECT_FALSE(counts(second / "d.h"));
    EXPECT_FALSE(counts(second / "below/c.h"));
    EXPECT_NE(digest({}, {"c.h", false}), digest({}, {"d.h", false})) << "names count";
}

TEST_F(External, ItIsTheFirstThatCompilersFind) {
    write(first / "a.h", "#include \"b.h\"\n#include <c.h>\n");
    write(first / "b.h", "");
    write(second / "b.h", "");
    write(second / "c.h", "1");
    EXPECT_TRUE(counts(first / "b.h"));
    EXPECT_FALSE(counts(second / "b.h"));
    const std::string before = digest();
    write(first / "c.h", "2");
    EXPECT_NE(digest(), before) << "it hides the other";
    EXPECT_FALSE(counts(second / "c.h"));
    fs::remove(first / "c.h");
    fs::create_directories(first / "c.h");
    EXPECT_EQ(digest(), before) << "compilers skip folders";
}

TEST_F(External, WhatIsMissingCountsByItsName) {
    write(first / "a.h", "#if __has_include(<below/b.h>)\n#endif\n");
    const std::string before = digest();
    write(second / "below/b.h", "");
    EXPECT_NE(digest(), before);
    fs::remove_all(second / "below");
    EXPECT_EQ(digest(), before);
    EXPECT_NE(digest({}, {"none.h", false}), digest({}, {"other.h", false}));
}

TEST_F(External, MacrosAreReplacedInEveryBranch) {
    write(first / "a.h", "#include \"names.h\"\n#include STD(b) // c\n#include PLAIN\n#include IN_QUOTES\n");
    write(first / "names.h",
          "#if X\n  #define STD(header) <new/header>\n#else\n# define STD( h ) <old/h.h>\n#endif\n"
          "#define PLAIN <p.h> /* c */\n#define IN_QUOTES \"q.h\"\n");
    for (const char* name : {"new/b", "old/b.b", "p.h", "new/header", "b"}) write(second / name, "");
    write(first / "q.h", "");
    ASSERT_NE(digest(), "");
    for (const char* name : {"new/b", "old/b.b", "p.h"}) EXPECT_TRUE(counts(second / name)) << name;
    EXPECT_TRUE(counts(first / "q.h"));
    for (const char* name : {"new/header", "b"}) EXPECT_FALSE(counts(second / name)) << name;
}

TEST_F(External, AMacroThatIsDefinedAfterItsUseCountsToo) {
    write(first / "a.h", "#define STD(x) <one/x>\n#include <b.h>\n#undef STD\n#include <c.h>\n");
    write(first / "b.h", "#include STD(y)\n");
    write(first / "c.h", "#define STD(x) <two/x>\n");
    write(second / "one/y", "");
    write(second / "two/y", "");
    EXPECT_TRUE(counts(second / "one/y"));
    EXPECT_TRUE(counts(second / "two/y"));
}

TEST_F(External, AMacroThatAsksForAHeader) {
    write(first / "a.h", "#define HAS(X) __has_include(X)\n#if 1 && HAS(<b.h>)\n#endif\n");
    const std::string before = digest();
    ASSERT_NE(before, "");
    write(second / "b.h", "");
    EXPECT_NE(digest(), before);
    write(first / "a.h", "#define HAS(X) __has_include(X)\n#define B <b.h>\n#if HAS(B)\n#endif\n");
    EXPECT_EQ(digest(), "");
}

TEST_F(External, WhatCannotBeDeterminedIsSaid) {
    for (const char* text :
         {"#include UNKNOWN\n", "#include STD(b)\n#define STD(x) OTHER(x)\n",
          "#include STD(b)\n#define STD(x) <x>\n#define b c\n", "#include STD(b)\n#define STD(x) <part/x>\n#define part c\n",
          "#include STD(a, b)\n#define STD(x, y) <x>\n", "#include STD(b) \n#define STD(x, y) <x>\n",
          "#include STD(b)\n#define STD(x) <x>\n#ifdef Y\n#define STD(x) <x> y\n#endif\n", "#include_next <b>\n",
          "#if __has_include_next(<b>)\n#endif\n", "/* never closed"}) {
        write(first / "a.h", text);
        EXPECT_EQ(digest(), "") << text;
        write(first / "a.h", "#include <below.h>\n");
        write(second / "below.h", text);
        EXPECT_EQ(digest(), "") << text;
    }
}

TEST_F(External, TheMemoGivesTheSameDigestUntilAnythingChanges) {
    write(first / "a.h", "#include \"b.h\"\n#include <c.h>\n#include <no/such.h>\n");
    write(first / "b.h", "");
    write(second / "c.h", "");
    write(second / "other.h", "");
    digest(memo);
    EXPECT_FALSE(fs::exists(memo)) << "files as young as this may change without their status showing it";
    settle();
    const std::string before = digest(memo);
    ASSERT_EQ(before, digest());
    ASSERT_TRUE(fs::exists(memo));
    const auto written = fs::last_write_time(memo);
    const auto same = [&] {
        const std::string right = digest();
        EXPECT_EQ(digest(memo), right);
        return right == before;
    };
    write(second / "other.h", "edited");
    EXPECT_TRUE(same());
    EXPECT_EQ(fs::last_write_time(memo), written) << "nothing was read again";
    const auto time = fs::last_write_time(first / "b.h");
    write(first / "b.h", "1");
    EXPECT_FALSE(same());
    write(first / "b.h", "");
    fs::last_write_time(first / "b.h", time);
    EXPECT_TRUE(same());
    for (const fs::path& added : {second / "no/such.h", first / "no/such.h", first / "c.h"}) {
        write(added, "");
        EXPECT_EQ(same(), added == first / "c.h") << added << ": the same name and contents, before the other";
        fs::remove(added);
        EXPECT_TRUE(same());
    }
    fs::remove(first / "b.h");
    EXPECT_FALSE(same());
    write(first / "b.h", "");
    write(memo, read(memo) + "x");
    EXPECT_TRUE(same());
}

TEST_F(External, AnUpgradeBehindALinkIsNoticed) {
    write(folder / "1/a.h", "#include <b.h>\n");
    write(folder / "1/b.h", "1");
    fs::copy(folder / "1", folder / "2");
    write(folder / "2/b.h", "2");
    fs::create_directory_symlink("1", second / "link");
    settle();
    const auto linked = [&] { return ExternalHeaders({second / "link"}).digest({{"a.h", false}}, memo); };
    const std::string before = linked();
    ASSERT_TRUE(fs::exists(memo));
    EXPECT_EQ(linked(), before);
    fs::remove(second / "link");
    fs::create_directory_symlink(folder / "2", second / "link");
    EXPECT_NE(linked(), before);
}

TEST_F(External, AMovedTreeHasTheSameDigest) {
    write(first / "a.h", "#include \"below/../b.h\"\n#include <c.h>\n");
    write(first / "b.h", "");
    fs::create_directories(first / "below");
    write(second / "c.h", "");
    const std::string before = digest();
    fs::rename(first, folder / "moved");
    EXPECT_EQ(ExternalHeaders({folder / "moved", second}).digest({{"a.h", false}}, {}), before);
}

TEST_F(External, LoopsOfLinksEnd) {
    write(first / "a.h", "#include \"loop/loop/a.h\"\n#include \"self.h\"\n#include \"loop/b.h\"\n");
    write(first / "b.h", "#include \"loop/a.h\"\n#include \"loop/loop/b.h\"\n");
    fs::create_directory_symlink(first, first / "loop");
    fs::create_symlink(first / "self.h", first / "self.h");
    EXPECT_NE(digest(), "");
    EXPECT_TRUE(counts(first / "b.h"));
}

TEST_F(External, AFailureIsNotRemembered) {
    write(first / "a.h", "#include <fifo.h>\n");
    ASSERT_EQ(::mkfifo((first / "fifo.h").c_str(), 0600), 0);
    ExternalHeaders headers({first, second});
    const auto again = [&] { return headers.digest({{"a.h", false}}, memo); };
    EXPECT_CONTAINS(message_of(again), "fifo.h: expected a readable file, got: it is not a regular file");
    fs::remove(first / "fifo.h");
    EXPECT_EQ(again(), digest());
}

// ---- The real ones

std::set<std::string> words_of(const std::string& text) {
    std::istringstream words(text);
    std::set<std::string> all;
    for (std::string word; words >> word;)
        if (std::error_code none; word.starts_with('/') && fs::exists(word, none)) all.insert(fs::canonical(word));
    return all;
}

TEST(ExternalHeadersOfKernels, AreThoseThatACompilerOpensAndFew) {
    const fs::path packages = fs::path(GDN_TEST_SITE_PACKAGES), ours = GDN_TEST_LIBRARY_INCLUDE;
    const fs::path cutlass = packages / "cutlass_library/source/include", cuda = packages / "nvidia/cu13/include";
    if (!fs::exists(cutlass) || !fs::exists(cuda / "cccl")) GTEST_SKIP() << "no nvidia-cutlass or CUDA 13 in " << packages;
    const std::vector<fs::path> folders = {ours, cutlass, cuda / "cccl", cuda};
    const TemporaryFolder folder;
    jit::OwnHeaders own(ours, {});
    std::set<std::vector<Include>> seen;
    for (const RegisteredKernel& kernel : registry()) {
        const jit::KernelSource& source = kernel.configurations.front().source;
        const std::vector<Include> external = own.of(source.code).external;
        if (!seen.insert(external).second) continue;
        const fs::path memo = folder / ("memo/" + std::to_string(seen.size()));
        EXPECT_NE(ExternalHeaders(folders).digest(external, memo), "") << source.id();
        if (!source.uses_cutlass) continue;
        std::set<std::string> covered;
        for (const auto& [name, entry] : FileMemo::read(memo).entries)
            if (entry.stamp != jit::FileStamp{}) covered.insert(fs::canonical(name));
        EXPECT_LT(covered.size(), 400u) << source.id();
        std::string code;
        for (const Include& include : external) code += "#include <" + include.name + ">\n";
        write(folder / "kernel.cu", code);
        for (const char* major : {"12", "13"}) {
            std::vector<std::string> command = {GDN_TEST_COMPILER,
                                                "-std=c++20",
                                                "-x",
                                                "c++",
                                                "-M",
                                                "-MG",
                                                "-D__CUDACC__",
                                                "-D__CUDACC_RTC__",
                                                "-D__CUDA_ARCH__=900",
                                                "-D__CUDACC_VER_MINOR__=0",
                                                "-D__CUDACC_VER_MAJOR__=" + std::string(major)};
            for (const fs::path& each : folders) command.push_back("-I" + each.string());
            command.push_back((folder / "kernel.cu").string());
            const jit::ProcessResult done = jit::run_process(command);
            int opened = 0;
            for (const std::string& path : words_of(done.output)) {
                const bool is_external = std::ranges::any_of(
                    folders, [&](const fs::path& each) { return path.starts_with(fs::canonical(each).string() + "/"); });
                opened += is_external;
                EXPECT_TRUE(!is_external || covered.contains(path)) << source.id() << ": " << path;
            }
            EXPECT_GT(opened, 20) << source.id() << ": " << done.output;
        }
    }
    EXPECT_GT(seen.size(), 1u);
}

}  // namespace
}  // namespace gdn_cuda::test
