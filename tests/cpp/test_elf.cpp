// ELF parsing of whole, truncated and damaged files.
#include <dlfcn.h>

#include "jit/compiler.hpp"
#include "jit/elf.hpp"
#include "jit/errors.hpp"
#include "jit/sha256.hpp"
#include "support.hpp"

namespace gdn_cuda::test {
namespace {

using jit::is_cubin;
using jit::kernel_symbols;

TEST(Elf, ReadsItsKernels) {
    EXPECT_TRUE(is_cubin(tiny_cubin({"k"})));
    EXPECT_EQ(kernel_symbols(tiny_cubin({"_Z1kv"})), std::vector<std::string>{"_Z1kv"});
    EXPECT_EQ(kernel_symbols(tiny_cubin({"a", "b"})), (std::vector<std::string>{"a", "b"}));
    EXPECT_TRUE(kernel_symbols(tiny_cubin({})).empty());
}

TEST(Elf, ATruncatedCubinIsRefused) {
    const std::string whole = tiny_cubin({"kernel"});
    for (std::size_t size = 0; size < whole.size(); ++size) {
        // copied, so that the sanitizer sees a read past the end
        const std::string truncated = whole.substr(0, size);
        EXPECT_FALSE(is_cubin(truncated)) << size;
        EXPECT_TRUE(kernel_symbols(truncated).empty()) << size;
    }
}

TEST(Elf, AnyChangedByteIsReadWithoutACrash) {
    const std::string whole = tiny_cubin({"kernel"});
    for (std::size_t at = 0; at < whole.size(); ++at)
        for (int value : {0x00, 0x01, 0x7f, 0x80, 0xff}) {
            std::string damaged = whole;
            damaged[at] = static_cast<char>(value);
            kernel_symbols(damaged);
        }
}

TEST(Elf, ForeignFilesAreNoCubins) {
    EXPECT_FALSE(is_cubin(read("/proc/self/exe")));
    EXPECT_FALSE(is_cubin(""));
    EXPECT_FALSE(is_cubin(std::string(4096, '\xff')));
    EXPECT_TRUE(kernel_symbols(read("/proc/self/exe")).empty());
}

TEST(Elf, ExactlyOneEntryIsAsked) {
    EXPECT_EQ(jit::entry_symbol(tiny_cubin({"one"}), "gdn/x"), "one");
    EXPECT_CONTAINS(message_of([] { jit::entry_symbol(tiny_cubin({}), "gdn/x"); }),
                    "gdn/x: expected exactly one kernel in the cubin, got 0");
    EXPECT_CONTAINS(message_of([] { jit::entry_symbol(tiny_cubin({"a", "b"}), "gdn/x"); }), "got 2: [a, b]");
    EXPECT_CONTAINS(message_of([] { jit::entry_symbol("hello", "gdn/x"); }), "got 5 bytes of something else");
}

TEST(Elf, BuildIdentity) {
    Dl_info info{};
    ASSERT_NE(::dladdr(reinterpret_cast<void*>(&::fopen), &info), 0);
    const TemporaryFolder folder;
    write(folder / "plain", "not an ELF file");
    EXPECT_EQ(jit::build_identity(folder / "plain"), "15-" + jit::sha256_hex("not an ELF file"));
    const std::string start = read("/proc/self/exe");
    for (std::size_t size : {std::size_t{0}, std::size_t{63}, std::size_t{64}, std::size_t{100}, std::size_t{5000}}) {
        write(folder / "truncated", start.substr(0, size));
        EXPECT_FALSE(jit::build_identity(folder / "truncated").empty());
    }
    EXPECT_CONTAINS(message_of([&] { jit::build_identity(folder / "gone"); }),
                    "gone: expected a readable file, got: No such file");
}

TEST(Elf, LibrariesWithABuildIdAreKnownByIt) {
    const char* candidates[] = {"/lib/x86_64-linux-gnu/libc.so.6", "/usr/lib64/libc.so.6", "/lib/aarch64-linux-gnu/libc.so.6"};
    for (const char* library : candidates) {
        if (!std::filesystem::exists(library)) continue;
        const std::string identity = jit::build_identity(library);
        EXPECT_EQ(identity.size(), 40u) << identity;
        EXPECT_EQ(identity.find('-'), std::string::npos) << identity;
        return;
    }
    GTEST_SKIP() << "no libc where distributions put it";
}

TEST(Ptxas, ReportIsRead) {
    const auto used = jit::parse_ptxas(
        "ptxas info    : 0 bytes gmem\n"
        "ptxas info    : Compiling entry function 'k' for 'sm_90a'\n"
        "ptxas info    : Function properties for k\n"
        "    48 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads\n"
        "ptxas info    : Used 64 registers, used 1 barriers, 48 bytes cumulative stack size, 1024 bytes smem, 400 bytes "
        "cmem[0]\n");
    EXPECT_EQ(used.registers, 64);
    EXPECT_EQ(used.static_shared_bytes, 1024);
    EXPECT_EQ(used.spill_bytes, 20);
    EXPECT_EQ(used.stack_bytes, 48);
    EXPECT_FALSE(used.is_serialized);
    EXPECT_TRUE(
        jit::parse_ptxas("ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized "
                         "due to wgmma pipeline crossing function boundary at a function call in the function 'k'\n")
            .is_serialized);
    EXPECT_EQ(jit::parse_ptxas("").registers, 0);
    EXPECT_EQ(jit::parse_ptxas(" registers").registers, 0);
    EXPECT_EQ(jit::parse_ptxas("99999999999999999999 registers").registers, 0);
}

}  // namespace
}  // namespace gdn_cuda::test
