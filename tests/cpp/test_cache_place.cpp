// The folder that the cache is kept in, and the folders that are refused. Real files, real processes.
#include <sys/stat.h>
#include <unistd.h>

#include <functional>
#include <stdexcept>

#include "jit/cache_place.hpp"
#include "jit/store.hpp"
#include "support.hpp"

namespace gdn_cuda::test {
namespace {

namespace fs = std::filesystem;
using jit::Store;

// The chosen place, as "directory | refusal | refusal ...".
std::string chosen(const Environment& environment, const std::function<void()>& before = {}) {
    return in_child(environment,
                    [&] {
                        if (before) before();
                        const Store opened = jit::open_first_usable();
                        std::string text = opened.directory().string();
                        for (const std::string& refusal : opened.refusals()) text += " | " + refusal;
                        return text;
                    })
        .value;
}

struct Place : ::testing::Test {
    TemporaryFolder folder;
    const std::string wanted = (folder / "a" / "cache").string(), home = (folder / "home").string(),
                      tmp = (folder / "tmp").string();
    const std::string last = tmp + "/gdn_cuda-" + std::to_string(::geteuid());

    Place() { fs::create_directories(tmp); }
    Environment environment() const { return {{"GDN_JIT_CACHE_DIR", wanted}, {"HOME", home}, {"TMPDIR", tmp}}; }
};

TEST_F(Place, PlacesAreTriedInOrder) {
    EXPECT_EQ(chosen(environment()), wanted);
    EXPECT_EQ(chosen({{"XDG_CACHE_HOME", folder / "xdg"}, {"HOME", home}}), (folder / "xdg" / "gdn_cuda").string());
    EXPECT_EQ(chosen({{"XDG_CACHE_HOME", "relative"}, {"HOME", home}}), home + "/.cache/gdn_cuda");
    EXPECT_EQ(chosen({{"HOME", ""}, {"TMPDIR", tmp}}), last);
    EXPECT_EQ(chosen({{"TMPDIR", tmp}}, [] { ::unsetenv("HOME"); }), last);
    struct stat status {};
    ASSERT_EQ(::stat((home + "/.cache/gdn_cuda").c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0700u);
}

TEST_F(Place, AFolderThatOthersMayWriteIsRefused) {
    fs::create_directories(wanted);
    ::chmod(wanted.c_str(), 0777);
    EXPECT_EQ(chosen(environment()),
              home + "/.cache/gdn_cuda | " + wanted + ": others may write it (mode 0777); chmod go-w makes it usable");
    ::chmod(wanted.c_str(), 0720);
    EXPECT_CONTAINS(chosen(environment()), "(mode 0720)");
    ::chmod(wanted.c_str(), 0755);
    EXPECT_EQ(chosen(environment()), wanted);
}

TEST_F(Place, AFolderOfAnotherUserIsRefused) {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
    fs::create_directories(wanted);
    ASSERT_EQ(::chown(wanted.c_str(), kNobody, kNobody), 0);
    EXPECT_CONTAINS(chosen(environment()), wanted + ": it belongs to user 65534, not to 0");
}

TEST_F(Place, AFolderBelowOneThatOthersMayRenameIsRefused) {
    fs::create_directories(wanted);
    ::chmod(wanted.c_str(), 0700);
    const fs::path above = fs::path(wanted).parent_path();
    ::chmod(above.c_str(), 0777);
    const std::string refused = home + "/.cache/gdn_cuda | " + wanted + ": others may rename what is in ";
    EXPECT_EQ(chosen(environment()), refused + above.string() + " (mode 0777); chmod go-w or chmod +t makes it usable");
    ::chmod(above.c_str(), 0775);
    EXPECT_CONTAINS(chosen(environment()), "(mode 0775)");
    fs::create_directory_symlink(wanted, folder / "link");
    EXPECT_CONTAINS(chosen({{"GDN_JIT_CACHE_DIR", folder / "link"}, {"HOME", home}}), "others may rename what is in")
        << "through a link";
    const std::string missing = (above / "not" / "yet").string();
    EXPECT_CONTAINS(chosen({{"GDN_JIT_CACHE_DIR", missing}, {"HOME", home}}), "others may rename what is in");
    EXPECT_FALSE(fs::exists(above / "not")) << "no folder is created there";
    ::chmod(above.c_str(), 01777);
    EXPECT_EQ(chosen(environment()), wanted) << "in a sticky folder only owners rename";
    if (::geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
    ::chmod(above.c_str(), 0755);
    ASSERT_EQ(::chown(above.c_str(), kNobody, kNobody), 0);
    EXPECT_CONTAINS(chosen(environment()), above.string() + " belongs to user 65534, who may rename what is in it");
    ASSERT_EQ(::chown(above.c_str(), 0, 0), 0);
    ASSERT_EQ(::lchown((folder / "link").c_str(), kNobody, kNobody), 0);
    EXPECT_CONTAINS(chosen({{"GDN_JIT_CACHE_DIR", folder / "link"}, {"HOME", home}}), "/link belongs to user 65534");
}

TEST_F(Place, LoopsOfLinksAndDotsInAPath) {
    fs::create_directory_symlink(folder / "loop", folder / "loop");
    EXPECT_CONTAINS(chosen({{"GDN_JIT_CACHE_DIR", folder / "loop"}, {"HOME", home}}), "Too many levels of symbolic links");
    fs::create_directories(folder / "a" / "b");
    fs::create_directory_symlink("a/b/../b/./../../a", folder / "dots");
    EXPECT_EQ(chosen({{"GDN_JIT_CACHE_DIR", folder / "dots" / "cache"}, {"HOME", home}}), (folder / "dots" / "cache").string());
    EXPECT_TRUE(fs::exists(wanted));
}

TEST_F(Place, AFileInPlaceOfTheFolder) {
    write(wanted, "");
    EXPECT_CONTAINS(chosen(environment()), wanted + ": not a folder");
    fs::remove(wanted);
    fs::remove(folder / "a");
    write(folder / "a", "");
    EXPECT_CONTAINS(chosen(environment()), "Not a directory");
}

TEST_F(Place, AFileSystemThatCannotBeWritten) {
    EXPECT_CONTAINS(chosen({{"GDN_JIT_CACHE_DIR", "/proc/gdn_cuda"}, {"HOME", home}}),
                    home + "/.cache/gdn_cuda | /proc/gdn_cuda: cannot make");
}

TEST_F(Place, AReadOnlyFolder) {
    fs::create_directories(wanted);
    const auto become_nobody = [&] {
        if (::geteuid() != 0) return;
        if (::chown(wanted.c_str(), kNobody, kNobody) != 0 || ::chown(tmp.c_str(), kNobody, kNobody) != 0)
            throw std::runtime_error("chown");
        if (::chmod(folder.path().c_str(), 0755) != 0 || ::setegid(kNobody) != 0 || ::seteuid(kNobody) != 0)
            throw std::runtime_error("uid");
    };
    ::chmod(wanted.c_str(), 0500);
    const std::string text = chosen({{"GDN_JIT_CACHE_DIR", wanted}, {"HOME", "/nonexistent"}, {"TMPDIR", tmp}}, become_nobody);
    EXPECT_CONTAINS(text, wanted + ": cannot create a file in " + wanted + ": Permission denied");
    EXPECT_TRUE(text.starts_with(tmp + "/gdn_cuda-")) << text;
}

TEST_F(Place, ALinkPlantedInTheSharedTemporaryFolderIsRefused) {
    fs::create_directories(folder / "victim");
    fs::create_directory_symlink(folder / "victim", last);
    EXPECT_EQ(chosen({{"HOME", "/proc"}, {"TMPDIR", tmp}}),
              " | /proc/.cache/gdn_cuda: cannot make /proc/.cache: No such file or directory | " + last + ": not a folder");
    EXPECT_TRUE(fs::is_empty(folder / "victim"));
}

TEST_F(Place, MemoryOnlyIsSaidOnce) {
    const auto result = in_child({{"GDN_JIT_CACHE_DIR", "/proc/x"}, {"HOME", "/proc"}, {"TMPDIR", "/nonexistent"}}, [] {
        Store::instance();
        Store& store = Store::instance();
        const bool published = jit::keep_cached("gdn/toy", key_of('a'), cubin_of("k"));
        return store.directory().string() + (published ? "published" : "kept") +
               std::to_string(store.clear() + store.list(true).size()) + store.memo_path("x").string();
    });
    EXPECT_EQ(result.value, "kept0");
    EXPECT_CONTAINS(result.stderr_text, "compiled kernels are kept in memory only because of /proc/x: ");
    EXPECT_EQ(result.stderr_text.find("because"), result.stderr_text.rfind("because"));
}

}  // namespace
}  // namespace gdn_cuda::test
