// SHA-256, key fields, and the digests of header trees.
#include <fcntl.h>
#include <sys/stat.h>

#include <chrono>
#include <thread>

#include "jit/errors.hpp"
#include "jit/file_memo.hpp"
#include "jit/key.hpp"
#include "jit/runtime.hpp"
#include "jit/tree.hpp"
#include "support.hpp"

namespace gdn_cuda::test {
namespace {

namespace fs = std::filesystem;
using jit::KeyBuilder;
using jit::Sha256;
using jit::sha256_hex;
using jit::tree_digest;

TEST(Sha256, KnownAnswers) {
    EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    EXPECT_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
              "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    EXPECT_EQ(sha256_hex(std::string(1'000'000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, SplitAnywhereIsTheSame) {
    std::string text;
    for (int i = 0; i < 200; ++i) text.push_back(static_cast<char>(i * 37));
    const std::string whole = sha256_hex(text);
    for (std::size_t split = 0; split <= text.size(); ++split)
        EXPECT_EQ(jit::hex(Sha256().update(text.substr(0, split)).update(text.substr(split)).digest()), whole) << split;
}

TEST(Key, FieldsDoNotRunIntoEachOther) {
    EXPECT_NE(KeyBuilder().add("a", "bc").hex(), KeyBuilder().add("ab", "c").hex());
    EXPECT_NE(KeyBuilder().add("a", "b").add("c", "d").hex(), KeyBuilder().add("a", "bcd").hex());
    EXPECT_NE(KeyBuilder().add("a", "").hex(), KeyBuilder().add("", "a").hex());
    EXPECT_NE(KeyBuilder().add("a", std::string_view("\0", 1)).hex(), KeyBuilder().add("a", "").hex());
    EXPECT_NE(KeyBuilder().add("a", "1").add("b", "2").hex(), KeyBuilder().add("b", "2").add("a", "1").hex());
    EXPECT_EQ(KeyBuilder().add("a", "1").hex().size(), 64u);
}

struct Tree : ::testing::Test {
    TemporaryFolder folder;
    fs::path root = folder / "include", memo = folder / "memo" / "m";

    Tree() {
        write(root / "a.hpp", "one");
        write(root / "sub" / "b.hpp", "two");
    }
    // Waits until files are old enough for their status to be trusted.
    static void settle() { std::this_thread::sleep_for(std::chrono::milliseconds(2100)); }
};

TEST_F(Tree, OnlyNamesAndBytesCount) {
    const std::string before = tree_digest(root, {});
    set_age(root / "a.hpp", std::chrono::hours(5));
    ::chmod((root / "a.hpp").c_str(), 0600);
    write(root / ".a.hpp.swp", "editor");
    write(root / "a.hpp~", "editor");
    EXPECT_EQ(tree_digest(root, {}), before);

    const TemporaryFolder other;
    fs::copy(root, other / "moved", fs::copy_options::recursive);
    EXPECT_EQ(tree_digest(other / "moved", {}), before);

    write(root / "a.hpp", "eno");  // the same length
    EXPECT_NE(tree_digest(root, {}), before);
    write(root / "a.hpp", "one");
    EXPECT_EQ(tree_digest(root, {}), before);
    fs::rename(root / "a.hpp", root / "c.hpp");
    EXPECT_NE(tree_digest(root, {}), before);
}

TEST_F(Tree, EditsShowThroughTheMemo) {
    settle();
    const std::string before = tree_digest(root, memo);
    ASSERT_TRUE(fs::exists(memo));
    EXPECT_EQ(tree_digest(root, memo), before);

    struct stat status {};
    ASSERT_EQ(::stat((root / "a.hpp").c_str(), &status), 0);
    write(root / "a.hpp", "eno");
    const timespec times[2] = {status.st_atim, status.st_mtim};  // as rsync or tar would set it back
    ASSERT_EQ(::utimensat(AT_FDCWD, (root / "a.hpp").c_str(), times, 0), 0);
    const std::string edited = tree_digest(root, memo);
    EXPECT_NE(edited, before);
    EXPECT_EQ(edited, tree_digest(root, {}));

    write(root / "a.hpp", "one");
    EXPECT_EQ(tree_digest(root, memo), before);
    write(root / "new.hpp", "");
    EXPECT_NE(tree_digest(root, memo), before);
    fs::remove(root / "new.hpp");
    EXPECT_EQ(tree_digest(root, memo), before);
}

TEST_F(Tree, FilesTooYoungAreReadAgain) {
    tree_digest(root, memo);
    EXPECT_FALSE(fs::exists(memo) && contains(read(memo), "a.hpp"));
}

TEST_F(Tree, WarmOnlyAsksForStatus) {
    settle();
    tree_digest(root, memo);
    // A memo with other content but a valid digest is accepted, which shows that the file itself was not read.
    std::string text = read(memo);
    const std::string real = sha256_hex("one"), forged = sha256_hex("forged");
    ASSERT_TRUE(contains(text, real));
    text.replace(text.find(real), real.size(), forged);
    text.resize(text.size() - 65);
    text += sha256_hex(text) + "\n";
    write(memo, text);
    EXPECT_NE(tree_digest(root, memo), tree_digest(root, {}));
}

TEST_F(Tree, ADamagedMemoIsNotTrusted) {
    settle();
    const std::string right = tree_digest(root, memo), text = read(memo);
    for (std::size_t size = 0; size < text.size(); size += 31) {
        write(memo, text.substr(0, size));
        EXPECT_EQ(tree_digest(root, memo), right) << "truncated to " << size;
    }
    for (std::size_t at = 0; at < text.size(); at += 5) {
        std::string flipped = text;
        flipped[at] = static_cast<char>(flipped[at] ^ 1);
        write(memo, flipped);
        EXPECT_EQ(tree_digest(root, memo), right) << "flipped at " << at;
    }
    fs::remove(memo);
    fs::create_directories(memo);  // cannot be written either
    EXPECT_EQ(tree_digest(root, memo), right);
}

TEST_F(Tree, LinksAreFollowedAndLoopsEnd) {
    write(folder / "elsewhere" / "c.hpp", "three");
    fs::create_directory_symlink(folder / "elsewhere", root / "linked");
    fs::create_directory_symlink(root, root / "sub" / "loop");
    fs::create_symlink("/nowhere/at/all", root / "dangling.hpp");
    const std::string before = tree_digest(root, {});
    write(folder / "elsewhere" / "c.hpp", "eerht");
    EXPECT_NE(tree_digest(root, {}), before);
}

TEST_F(Tree, AHeaderTooLargeToReadIsNamed) {
    write(root / "vast.hpp", "x");
    fs::resize_file(root / "vast.hpp", std::uintmax_t{1} << 40);  // sparse
    EXPECT_CONTAINS(message_of([&] { tree_digest(root, {}); }),
                    "vast.hpp: expected a readable file, got: it has 1099511627776 bytes");
}

TEST_F(Tree, OnlyFoldersAskedFor) {
    const auto none = [](std::string_view) { return false; };
    const std::string before = tree_digest(root, {}, none);
    write(root / "sub" / "b.hpp", "owt");
    EXPECT_EQ(tree_digest(root, {}, none), before);
    write(root / "a.hpp", "eno");
    EXPECT_NE(tree_digest(root, {}, none), before);
}

TEST_F(Tree, AMissingFolderSaysWhich) {
    EXPECT_CONTAINS(message_of([&] { tree_digest(root / "nothing", {}); }), "nothing");
}

TEST_F(Tree, MemoisedValueFollowsItsFile) {
    settle();
    int computed = 0;
    const auto compute = [&] { return "value " + std::to_string(++computed); };
    EXPECT_EQ(jit::memoised(root / "a.hpp", memo, compute), "value 1");
    EXPECT_EQ(jit::memoised(root / "a.hpp", memo, compute), "value 1");
    write(root / "a.hpp", "eno");
    EXPECT_EQ(jit::memoised(root / "a.hpp", memo, compute), "value 2");
    EXPECT_EQ(jit::memoised(root / "gone", memo, compute), "value 3");
}

// Keys with a library root made for the test; each in a new process, because identities are kept.
struct CodeKey : ::testing::Test {
    TemporaryFolder folder;
    jit::KernelSource source{"gdn", "toy", "{}", "#include <gdn_cuda/kernels/gdn/toy.cuh>\n", false};

    CodeKey() { write(folder / "include/gdn_cuda/kernels/gdn/toy.cuh", "// toy"); }

    std::string key(const fs::path& root, const jit::KernelSource& of, const std::string& arch = "sm_90a",
                    const Environment& more = {}) {
        return in_child(more,
                        [&] {
                            jit::init(root, {});
                            return jit::code_key(of, arch);
                        })
            .value;
    }
};

TEST_F(CodeKey, EveryFieldCounts) {
    const fs::path root = folder.path();
    const std::string before = key(root, source);
    EXPECT_EQ(before.size(), 64u) << before;
    EXPECT_EQ(key(root / "include", source), before) << "the include folder itself is accepted too";
    for (auto change : {+[](jit::KernelSource& s) { s.family = "scan"; }, +[](jit::KernelSource& s) { s.name = "yot"; },
                        +[](jit::KernelSource& s) { s.code += " "; }, +[](jit::KernelSource& s) { s.uses_cutlass = true; },
                        +[](jit::KernelSource& s) { s.few_registers = true; }}) {
        jit::KernelSource changed = source;
        change(changed);
        EXPECT_NE(key(root, changed), before);
    }
    EXPECT_NE(key(root, source, "sm_90"), before);
    EXPECT_NE(key(root, source, "sm_90a", {{"GDN_JIT_LINEINFO", "1"}}), before);
    EXPECT_EQ(key(root, source, "sm_90a", {{"GDN_JIT_DUMP", "1"}, {"GDN_JIT_PRINT", "1"}}), before);
    EXPECT_CONTAINS(key(root, source, "hopper"), "error: arch: expected a name like sm_90a, got \"hopper\"");
}

TEST_F(CodeKey, MovedAndTouchedIsTheSameEditedIsNot) {
    const std::string before = key(folder.path(), source);
    const TemporaryFolder other;
    fs::copy(folder / "include", other / "include", fs::copy_options::recursive);
    EXPECT_EQ(key(other.path(), source), before);
    set_age(other / "include/gdn_cuda/kernels/gdn/toy.cuh", std::chrono::hours(1));
    EXPECT_EQ(key(other.path(), source), before);
    write(other / "include/gdn_cuda/kernels/gdn/toy.cuh", "// yot");
    EXPECT_NE(key(other.path(), source), before);
}

}  // namespace
}  // namespace gdn_cuda::test
