// The headers of ours that a kernel's key covers: compared with those that compilers report, and edited one by one.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <thread>

#include "jit/errors.hpp"
#include "jit/own_headers.hpp"
#include "jit/process.hpp"
#include "jit/runtime.hpp"
#include "launch/registry.hpp"
#include "launch/tunables.hpp"
#include "support.hpp"

namespace gdn_cuda::test {
namespace {

namespace fs = std::filesystem;
using jit::Header;
using jit::HeaderSet;
using jit::OwnHeaders;

const fs::path kLibrary = GDN_TEST_LIBRARY_INCLUDE;

std::set<std::string> present(const HeaderSet& found) {
    std::set<std::string> names;
    for (const Header& header : found.headers)
        if (header.digest != "missing") names.insert(header.name);
    return names;
}

// Waits until files are old enough for their status to be trusted.
void settle() {
    std::this_thread::sleep_for(std::chrono::milliseconds(2100));
}

std::string all_of(const HeaderSet& found) {
    std::string text = found.unclear ? "unclear\n" : "";
    for (const Header& header : found.headers) text += header.name + ' ' + header.digest + '\n';
    return text;
}

// ---- The library's own kernels

// One source of each kernel; its configurations include the same headers.
const std::vector<jit::KernelSource>& kernels() {
    static const std::vector<jit::KernelSource> all = [] {
        std::vector<jit::KernelSource> sources;
        for (const RegisteredKernel& kernel : registry()) sources.push_back(kernel.configurations.front().source);
        return sources;
    }();
    return all;
}

// Files below kLibrary of a make rule, "x.o: a b \\\n c"; a space of a name is escaped.
std::set<std::string> prerequisites(const std::string& rule) {
    std::set<std::string> names;
    std::string name;
    const auto end_name = [&] {
        if (name.starts_with(kLibrary.string()))
            names.insert(fs::path(name).lexically_relative(kLibrary).lexically_normal().string());
        name.clear();
    };
    for (std::size_t i = 0; i < rule.size(); ++i) {
        if (rule[i] == '\\' && i + 1 < rule.size())
            name += rule[++i];
        else if (rule[i] == ' ' || rule[i] == '\n')
            end_name();
        else
            name += rule[i];
        if (name == "\n") name.clear();
    }
    end_name();
    return names;
}

// Our headers that a preprocessor reports to open. Headers of CUDA need not be present.
std::set<std::string> opened(const jit::KernelSource& source, std::vector<std::string> command) {
    const TemporaryFolder folder;
    write(folder / "kernel.cu", source.code);
    command.insert(command.end(), {"-I" + kLibrary.string(), (folder / "kernel.cu").string()});
    const jit::ProcessResult done = jit::run_process(command);
    EXPECT_TRUE(done.started && done.exit_code == 0) << command.front() << ": " << done.output;
    return prerequisites(done.output);
}

TEST(KernelHeaders, AreThoseThatCompilersOpen) {
    const std::vector<std::string> host = {GDN_TEST_COMPILER, "-std=c++20", "-x", "c++", "-M", "-MG"};
    std::vector<std::string> device = host;
    device.insert(device.end(), {"-D__CUDACC__", "-D__CUDACC_RTC__", "-D__CUDA_ARCH__=900"});
    OwnHeaders own(kLibrary, {});
    for (const jit::KernelSource& source : kernels()) {
        const HeaderSet found = own.of(source.code);
        EXPECT_FALSE(found.unclear) << source.id();
        std::set<std::string> either = opened(source, host);
        either.merge(opened(source, device));
        EXPECT_EQ(present(found), either) << source.id();
        EXPECT_EQ(present(found).size(), found.headers.size()) << source.id() << ": nothing is missing";
        EXPECT_TRUE(present(found).contains("gdn_cuda/kernels/" + source.id() + ".cuh")) << source.id();
    }
}

// Checks all kernels at once, because nvcc is slow, except those that include CUTLASS, which nvcc would have to find.
TEST(KernelHeaders, AreThoseThatNvccOpens) {
    if (jit::run_process({"/usr/bin/env", "nvcc", "--version"}).exit_code != 0) GTEST_SKIP() << "no nvcc on PATH";
    jit::KernelSource all;
    for (const jit::KernelSource& source : kernels())
        if (!source.uses_cutlass) all.code += jit::include_of(source.id());
    EXPECT_EQ(present(OwnHeaders(kLibrary, {}).of(all.code)),
              opened(all, {"/usr/bin/env", "nvcc", "-std=c++20", "-x", "cu", "-arch=sm_90a", "-MM"}));
}

TEST(KernelHeaders, AnEditChangesTheKernelsThatIncludeItAndNoOther) {
    const TemporaryFolder folder;
    const fs::path root = folder / "include";
    fs::copy(kLibrary, root, fs::copy_options::recursive);
    settle();
    const auto digests = [&] {
        OwnHeaders own(root, folder / "memo/m");
        std::map<std::string, std::string> all;
        for (const jit::KernelSource& source : kernels()) all[source.id()] = all_of(own.of(source.code));
        return all;
    };
    std::map<std::string, std::set<std::string>> includes;
    for (const jit::KernelSource& source : kernels())
        includes[source.id()] = opened(source, {GDN_TEST_COMPILER, "-std=c++20", "-x", "c++", "-M", "-MG", "-D__CUDACC__"});
    const auto before = digests();
    std::vector<fs::path> headers;
    for (const auto& entry : fs::recursive_directory_iterator(root / "gdn_cuda/kernels"))
        if (entry.is_regular_file()) headers.push_back(entry.path());
    EXPECT_GT(headers.size(), 70u);
    std::ranges::sort(headers);
    for (std::size_t i = 0; i < headers.size(); i += 4) {  // each takes a tenth of a second under the sanitizers
        const fs::path& header = headers[i];
        const std::string name = header.lexically_relative(root).string(), text = read(header);
        write(header, text + "// edited\n");
        for (const auto& [kernel, digest] : digests())
            EXPECT_EQ(digest != before.at(kernel), includes.at(kernel).contains(name)) << name << " of " << kernel;
        write(header, text);
    }
    for (const fs::path& header : headers) set_age(header, std::chrono::hours(1));
    EXPECT_EQ(digests(), before) << "touched";
}

TEST(KernelHeaders, WinnersAreOfKernelsThatExist) {
    for (const Tunable& one : tunables())
        EXPECT_TRUE(std::ranges::any_of(kernels(), [&](const auto& source) { return source.id() == one.kernel; }))
            << one.kernel;
}

// ---- Headers of a test

struct Included : ::testing::Test {
    TemporaryFolder folder;
    const fs::path root = folder / "include", memo = folder / "memo/m";
    const fs::path kernel = root / "gdn_cuda/kernels/toy";

    void header(const std::string& name, const std::string& text) const { write(kernel / name, text); }
    HeaderSet found(const std::string& code = "#include <gdn_cuda/kernels/toy/a.cuh>\n",
                    const fs::path& remembered = {}) const {
        return OwnHeaders(root, remembered).of(code);
    }
    // The names in order, relative to a.cuh if they are below its folder.
    std::string names(const HeaderSet& of) const {
        std::string text = of.unclear ? "?" : "";
        for (const Header& header : of.headers) {
            std::string name = header.name;
            if (name.starts_with("gdn_cuda/kernels/toy/")) name = name.substr(21);
            text += (text.empty() ? "" : " ") + name + (header.digest == "missing" ? "!" : "");
        }
        return text;
    }
    std::string names() const { return names(found()); }
};

TEST_F(Included, HeadersBesideAndByFullPathCountThoseOfOthersDoNot) {
    header("a.cuh", "#include \"b.cuh\"\n#include <gdn_cuda/kernels/toy/c.cuh>\n#include <cuda_bf16.h>\n#include <b.cuh>\n");
    header("b.cuh", "#include \"gdn_cuda/kernels/toy/c.cuh\"\n");
    header("c.cuh", "");
    header("d.cuh", "");
    write(root / "cuda_bf16.h", "of an install prefix");
    EXPECT_EQ(names(), "a.cuh b.cuh c.cuh gdn_cuda/kernels/toy/c.cuh!");
    EXPECT_EQ(names(found("kernel without includes")), "");
    EXPECT_EQ(names(found("#include \"gdn_cuda/kernels/toy/d.cuh\"")), "d.cuh");
}

TEST_F(Included, RelativePathsAndCycles) {
    header("a.cuh",
           "#include \"../common/x.cuh\"\n#include \"below/b.cuh\"\n#include <gdn_cuda//kernels/./toy/../toy/c.cuh>\n");
    header("below/b.cuh", "#include \"../a.cuh\"\n#include \"../below/../c.cuh\"\n#include \"b.cuh\"\n");
    header("c.cuh", "#include \"c.cuh\"\n#include \"../../../../outside.h\"\n");
    write(root / "gdn_cuda/kernels/common/x.cuh", "");
    write(folder / "outside.h", "");
    EXPECT_EQ(names(), "a.cuh gdn_cuda/kernels/common/x.cuh below/b.cuh c.cuh ../outside.h");
    const std::string before = all_of(found());
    write(folder / "outside.h", "// edited");
    EXPECT_NE(all_of(found()), before);
}

TEST_F(Included, WhatIsMissingCountsByItsName) {
    header("a.cuh", "#include \"b.cuh\"\n#if __has_include(<gdn_cuda/kernels/toy/c.cuh>)\n#endif\n");
    header("b.cuh", "");
    EXPECT_EQ(names(), "a.cuh b.cuh c.cuh!");
    const std::string without = all_of(found());
    header("c.cuh", "");
    EXPECT_EQ(names(), "a.cuh b.cuh c.cuh");
    EXPECT_NE(all_of(found()), without);
    fs::remove(kernel / "b.cuh");
    EXPECT_EQ(names(), "a.cuh b.cuh! c.cuh");
    EXPECT_EQ(names(found("#include <gdn_cuda/kernels/none/a.cuh>")), "gdn_cuda/kernels/none/a.cuh!");
}

TEST_F(Included, AHeaderBesideTheIncludingOneComesFirst) {
    header("a.cuh", "#include \"gdn_cuda/b.cuh\"\n");
    write(root / "gdn_cuda/b.cuh", "");
    const std::string far = all_of(found());
    header("gdn_cuda/b.cuh", "");
    EXPECT_EQ(names(), "a.cuh gdn_cuda/b.cuh");
    EXPECT_NE(all_of(found()), far);
}

TEST_F(Included, AMovedTreeHasTheSameDigest) {
    header("a.cuh", "#include \"b.cuh\"\n");
    header("b.cuh", "");
    const std::string before = all_of(found());
    fs::create_directory_symlink(root, folder / "linked");
    EXPECT_EQ(all_of(OwnHeaders(folder / "linked", {}).of("#include <gdn_cuda/kernels/toy/a.cuh>\n")), before);
    fs::rename(root, folder / "moved");
    EXPECT_EQ(all_of(OwnHeaders(folder / "moved", {}).of("#include <gdn_cuda/kernels/toy/a.cuh>\n")), before);
}

TEST_F(Included, LinksResolveAsInCompilers) {
    write(folder / "elsewhere/up.cuh", "");
    write(folder / "elsewhere/below/x.cuh", "#include \"y.cuh\"\n");
    header("a.cuh", "#include \"link/../up.cuh\"\n#include \"x.cuh\"\n");
    fs::create_directory_symlink(folder / "elsewhere/below", kernel / "link");
    fs::create_symlink(folder / "elsewhere/below/x.cuh", kernel / "x.cuh");
    header("y.cuh", "");
    EXPECT_EQ(names(), "a.cuh up.cuh x.cuh y.cuh")
        << ".. starts at the target of a folder's link, and other names beside a header's link";
    const std::string before = all_of(found());
    write(folder / "elsewhere/up.cuh", "// edited");
    EXPECT_NE(all_of(found()), before);
    const jit::ProcessResult compiler =
        jit::run_process({GDN_TEST_COMPILER, "-std=c++20", "-x", "c++", "-fsyntax-only", (kernel / "a.cuh").string()});
    EXPECT_EQ(compiler.exit_code, 0) << compiler.output;
}

TEST_F(Included, LoopsOfLinksEnd) {
    header("a.cuh",
           "#include \"loop/loop/a.cuh\"\n#include \"self.cuh\"\n#include \"dangling.cuh\"\n#include \"loop/b.cuh\"\n");
    header("b.cuh", "#include \"loop/a.cuh\"\n#include \"loop/loop/b.cuh\"\n");
    fs::create_directory_symlink(kernel, kernel / "loop");
    fs::create_symlink(kernel / "self.cuh", kernel / "self.cuh");
    fs::create_symlink("/nowhere/at/all", kernel / "dangling.cuh");
    EXPECT_EQ(names(), "a.cuh self.cuh! dangling.cuh! loop/b.cuh");
}

TEST_F(Included, AFolderIsPassedOverAndAFifoRefusedWithoutWaiting) {
    header("a.cuh", "#include \"folder.cuh\"\n#include <gdn_cuda/kernels/toy/folder.cuh>\n#include \"\"\n#include \".\"\n");
    fs::create_directories(kernel / "folder.cuh");
    EXPECT_FALSE(contains(names(), "folder.cuh ")) << names();
    EXPECT_EQ(present(found()), std::set<std::string>{"gdn_cuda/kernels/toy/a.cuh"});
    header("a.cuh", "#include \"fifo.cuh\"\n");
    ASSERT_EQ(::mkfifo((kernel / "fifo.cuh").c_str(), 0600), 0);
    EXPECT_CONTAINS(message_of([&] { found(); }), "fifo.cuh: expected a readable file, got: it is not a regular file");
    EXPECT_EQ(names(found("#include <gdn_cuda/kernels/toy/b.cuh>")), "b.cuh!") << "it is another kernel's";
    header("a.cuh", "#include \"vast.cuh\"\n");
    header("vast.cuh", "x");
    fs::resize_file(kernel / "vast.cuh", std::uintmax_t{1} << 40);
    EXPECT_CONTAINS(message_of([&] { found(); }), "it has 1099511627776 bytes");
}

TEST_F(Included, LongListsAndDeepChains) {
    std::string list;
    for (int i = 0; i < 10'000; ++i) list += "#include \"n" + std::to_string(i) + ".cuh\"\n";
    header("a.cuh", list + list + "#include \"c0.cuh\"\n");
    for (int i = 0; i < 2'000; ++i)
        header("c" + std::to_string(i) + ".cuh", "#include \"c" + std::to_string(i + 1) + ".cuh\"\n");
    const HeaderSet all = found();
    EXPECT_EQ(all.headers.size(), 1u + 10'000 + 2'000 + 1);
    EXPECT_EQ(present(all).size(), 2'001u);
}

TEST_F(Included, TheMemoGivesTheSameHeaders) {
    header("a.cuh", "#include \"b.cuh\"\n#include MACRO\n");
    header("b.cuh", "#include <gdn_cuda/kernels/toy/c.cuh>\n");
    const std::string code = "#include <gdn_cuda/kernels/toy/a.cuh>\n";
    found(code, memo);
    EXPECT_FALSE(fs::exists(memo)) << "files as young as this may change without their status showing it";
    settle();
    const std::string before = all_of(found(code));
    EXPECT_EQ(all_of(found(code, memo)), before);
    ASSERT_TRUE(contains(read(memo), "toy/b.cuh"));
    EXPECT_EQ(all_of(found(code, memo)), before);

    const fs::file_time_type written = fs::last_write_time(memo);
    EXPECT_EQ(all_of(found(code, memo)), before);
    EXPECT_EQ(fs::last_write_time(memo), written) << "nothing was learned";
    header("c.cuh", "");
    EXPECT_NE(all_of(found(code, memo)), before);
    fs::remove(kernel / "c.cuh");
    EXPECT_EQ(all_of(found(code, memo)), before);
    header("b.cuh", "#include <gdn_cuda/kernels/toy/d.cuh>\n");  // the same length
    EXPECT_EQ(names(found(code, memo)), "? a.cuh b.cuh d.cuh!");
    fs::remove(kernel / "b.cuh");
    found(code, memo);
    EXPECT_FALSE(contains(read(memo), "toy/b.cuh"));
    write(memo, read(memo) + "x");
    EXPECT_EQ(all_of(found(code, memo)), all_of(found(code)));
}

TEST_F(Included, AFileIsLookedAtOnce) {
    header("a.cuh", "");
    OwnHeaders own(root, {});
    const std::string code = "#include <gdn_cuda/kernels/toy/a.cuh>\n", before = all_of(own.of(code));
    header("a.cuh", "// edited");
    EXPECT_EQ(all_of(own.of(code)), before);
    EXPECT_NE(all_of(found(code)), before);
}

// A later call must not use the result of one that failed.
TEST_F(Included, AFailureIsNotRemembered) {
    header("a.cuh", "#include \"fifo.cuh\"\n");
    ASSERT_EQ(::mkfifo((kernel / "fifo.cuh").c_str(), 0600), 0);
    OwnHeaders own(root, {});
    EXPECT_CONTAINS(message_of([&] { own.of("#include <gdn_cuda/kernels/toy/a.cuh>"); }), "not a regular file");
    fs::remove(kernel / "fifo.cuh");
    EXPECT_EQ(names(own.of("#include <gdn_cuda/kernels/toy/a.cuh>")), "a.cuh fifo.cuh!");
}

// ---- Keys

TEST_F(Included, AKeyCoversThemOrAllOfOursWhereTheyAreUnclear) {
    header("a.cuh", "#include \"b.cuh\"\n");
    header("b.cuh", "");
    header("other.cuh", "");
    const auto key = [&] {
        return in_child({},
                        [&] {
                            jit::init(root, {});
                            return jit::code_key({"toy", "a", "{}", "#include <gdn_cuda/kernels/toy/a.cuh>\n", false},
                                                 "sm_90a");
                        })
            .value;
    };
    const std::string before = key();
    ASSERT_EQ(before.size(), 64u) << before;
    header("other.cuh", "// edited");
    header("new.cuh", "");
    EXPECT_EQ(key(), before);
    header("b.cuh", "// edited");
    EXPECT_NE(key(), before);

    header("b.cuh", "#define OTHER <gdn_cuda/kernels/toy/other.cuh>\n#include OTHER\n");
    const std::string by_macro = key();
    header("other.cuh", "// edited again");
    EXPECT_NE(key(), by_macro);
}

}  // namespace
}  // namespace gdn_cuda::test
