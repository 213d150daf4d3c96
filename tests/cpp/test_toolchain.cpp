// Finding compilers and headers, in trees made for the tests.
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "jit/errors.hpp"
#include "jit/nvrtc.hpp"
#include "jit/toolchain.hpp"
#include "support.hpp"

namespace gdn_cuda::test {
namespace {

namespace fs = std::filesystem;
using jit::SearchPaths;
using jit::Toolchain;

struct Layouts : ::testing::Test {
    TemporaryFolder folder;
    const fs::path toolkit = folder / "cuda-13", wheels13 = folder / "site/nvidia/cu13", wheels12 = folder / "site12/nvidia",
                   library = folder / "library", cutlass = folder / "cutlass_library/source/include";

    Layouts() {
        for (const fs::path& home : {toolkit, wheels13}) {
            write(home / "include/cuda_bf16.h", "// 13");
            write_cccl(home / "include/cccl", 3000001);
        }
        for (const char* name :
             {"lib64/libnvrtc.so", "lib64/libnvrtc.so.13", "lib64/libnvrtc.so.13.0.88", "lib64/libnvrtc.alt.so.13",
              "lib64/libnvrtc-builtins.so.13.0", "lib64/libnvrtc-builtins.so.13.0.88", "bin/nvcc"})
            write(toolkit / name, "x");
        for (const char* name : {"lib/libnvrtc.so.13", "lib/libnvrtc-builtins.so.13.0", "lib/libnvrtc-builtins.alt.so.13.0"})
            write(wheels13 / name, "x");
        for (const char* name :
             {"cuda_runtime/include/cuda_bf16.h", "cuda_nvrtc/lib/libnvrtc.so.12", "cuda_nvrtc/lib/libnvrtc-builtins.so.12.9"})
            write(wheels12 / name, "x");
        write_cccl(wheels12 / "cuda_cccl/include", 2008002);
        write(library / "include/gdn_cuda/kernels/gdn/toy.cuh", "// toy");
        write(cutlass / "cutlass/cutlass.h", "");
    }

    static void write_cccl(const fs::path& where, int version) {
        write(where / "cuda/std/type_traits", "");
        write(where / "cuda/std/__cccl/version.h", "#define CCCL_VERSION " + std::to_string(version) + "\n");
    }

    // Runs in a new process with this environment.
    std::string find(const Environment& environment, const SearchPaths& init, const SearchPaths& hook,
                     const std::function<std::string(const Toolchain&)>& show) {
        return in_child(environment,
                        [&] {
                            ::setenv("PATH", (folder / "nothing").c_str(), 1);
                            return show(jit::discover(init, hook));
                        })
            .value;
    }
    static std::string all(const Toolchain& tools) {
        std::string text;
        for (const fs::path& path : {tools.library_include, tools.nvrtc, tools.nvrtc_builtins, tools.cuda_include,
                                     tools.cccl_include, tools.cutlass_include})
            text += path.string() + "\n";
        return text;
    }
    std::string lines(const std::vector<fs::path>& paths) const {
        std::string text;
        for (const fs::path& path : paths) text += path.string() + "\n";
        return text;
    }
};

TEST_F(Layouts, Cuda13Wheels) {
    SearchPaths hook;
    hook.library_root = library / "include";
    hook.cuda_include = wheels13 / "include";
    hook.cutlass_include = cutlass;
    EXPECT_EQ(find({}, {}, hook, all),
              lines({library / "include", wheels13 / "lib/libnvrtc.so.13", wheels13 / "lib/libnvrtc-builtins.so.13.0",
                     wheels13 / "include", wheels13 / "include/cccl", cutlass}));
}

TEST_F(Layouts, Cuda12Wheels) {
    SearchPaths hook;
    hook.library_root = library;
    hook.cuda_include = wheels12 / "cuda_runtime/include";
    hook.cutlass_include = cutlass;
    const std::string expected = lines({library / "include", wheels12 / "cuda_nvrtc/lib/libnvrtc.so.12",
                                        wheels12 / "cuda_nvrtc/lib/libnvrtc-builtins.so.12.9",
                                        wheels12 / "cuda_runtime/include", wheels12 / "cuda_cccl/include", cutlass});
    EXPECT_EQ(find({}, {}, hook, all), expected);
    hook.cuda_include.clear();
    EXPECT_EQ(find({{"GDN_CUDA_HOME", wheels12}}, {}, hook, all), expected);
}

TEST_F(Layouts, ToolkitAndTheOrderOfTrust) {
    const std::string from_toolkit =
        lines({library / "include", toolkit / "lib64/libnvrtc.so.13", toolkit / "lib64/libnvrtc-builtins.so.13.0",
               toolkit / "include", toolkit / "include/cccl", cutlass});
    SearchPaths hook, init;
    hook.library_root = library;
    hook.cuda_include = wheels12 / "cuda_runtime/include";
    EXPECT_EQ(find({{"GDN_CUDA_HOME", toolkit}, {"GDN_CUTLASS_INCLUDE", cutlass}}, {}, hook, all), from_toolkit);
    init.cuda_home = toolkit;
    EXPECT_EQ(find({{"GDN_CUDA_HOME", wheels13}, {"GDN_CUTLASS_INCLUDE", cutlass}}, init, hook, all), from_toolkit);
}

TEST_F(Layouts, OnlyALibcuppThatCutlassCompilesWith) {
    SearchPaths hook;
    hook.cuda_include = toolkit / "include";
    hook.cccl_include = wheels13 / "include/cccl";
    const auto folders = [](const Toolchain& tools) {
        std::string text;
        for (const fs::path& path : tools.include_dirs(true)) text += path.string() + "\n";
        return text;
    };
    const auto digest = [](const Toolchain& tools) { return tools.external_headers_identity(true); };
    EXPECT_EQ(find({}, {}, hook, folders), lines({toolkit / "include/cccl", toolkit / "include"}));
    for (const int version : {2007000, 3002000, 4000000}) {
        write_cccl(toolkit / "include/cccl", version);
        // Compilers look for <cccl/...> in the parent, which therefore comes before the toolkit's headers.
        EXPECT_EQ(find({}, {}, hook, folders), lines({wheels13 / "include/cccl", wheels13 / "include", toolkit / "include"}));
    }
    const std::string before = find({}, {}, hook, digest);
    write(wheels13 / "include/cuda_fp16.h", "// found before the toolkit's");
    EXPECT_NE(find({}, {}, hook, digest), before);
    fs::remove_all(toolkit / "include/cccl");
    EXPECT_EQ(find({}, {}, hook, folders), lines({wheels13 / "include/cccl", toolkit / "include", wheels13 / "include"}));
    write_cccl(toolkit / "include/cccl", 3001004);
    EXPECT_EQ(find({{"GDN_CCCL_INCLUDE", wheels12 / "cuda_cccl/include"}}, {}, hook, folders),
              lines({wheels12 / "cuda_cccl/include", toolkit / "include"}));
}

TEST_F(Layouts, NvccAndItsOwnHeaders) {
    SearchPaths hook;
    hook.cuda_include = wheels13 / "include";
    const auto nvcc = [](const Toolchain& tools) { return tools.nvcc.string() + " " + tools.cuda_include.string(); };
    write(folder / "my nvcc", "x");
    EXPECT_TRUE(find({{"GDN_JIT_NVCC", folder / "my nvcc"}}, {}, hook, nvcc).starts_with((folder / "my nvcc").string()));
    const fs::path moved = folder / "bin with space" / "nvcc";
    fs::create_directories(moved.parent_path());
    fs::create_symlink(toolkit / "bin/nvcc", moved);
    EXPECT_EQ(find({{"GDN_JIT_NVCC", moved}, {"GDN_JIT_USE_NVCC", "1"}}, {}, hook, nvcc),
              moved.string() + " " + (toolkit / "include").string());
    EXPECT_EQ(find({{"GDN_JIT_NVCC", moved}}, {}, hook, nvcc), moved.string() + " " + (wheels13 / "include").string());
}

TEST_F(Layouts, WhatIsMissingIsListedWithEachPlaceAndTheFix) {
    fs::create_directories(folder / "empty");
    SearchPaths init;
    init.cuda_home = folder / "empty";
    const auto required = [](const Toolchain& tools) { return message_of([&] { tools.require(false, true); }); };
    const std::string text = find({{"GDN_CUTLASS_INCLUDE", folder / "empty"}}, init, {}, required);
    EXPECT_CONTAINS(text, "compiling a kernel needs what is missing here:\n");
    EXPECT_CONTAINS(text, "gdn_cuda's kernel headers (gdn_cuda/kernels) not found.");
    EXPECT_CONTAINS(text, "no ../include/gdn_cuda/kernels or ../../include/gdn_cuda/kernels");
    EXPECT_CONTAINS(text, "GDN_CUTLASS_INCLUDE " + (folder / "empty").string() + ": no cutlass/cutlass.h");
    EXPECT_CONTAINS(text, "to fix: pip install nvidia-cutlass, or set GDN_CUTLASS_INCLUDE");
    if (!fs::exists("/usr/local/cuda/lib64")) {
        EXPECT_CONTAINS(text, "init(cuda_home) " + (folder / "empty").string() + ": no libnvrtc.so.* in lib64, lib");
        EXPECT_CONTAINS(text, "the usual place /usr/local/cuda: no libnvrtc.so.*");
    }
    EXPECT_EQ(text.find("nvcc not found"), std::string::npos) << "not asked for";
}

TEST_F(Layouts, AFolderWithoutSearchPermissionIsReported) {
    const fs::path shut = folder / "shut";
    write(shut / "include/gdn_cuda/kernels/gdn/toy.cuh", "");
    const std::vector<fs::path> closed = {shut, toolkit / "include", toolkit / "lib64"};
    SearchPaths init;
    init.library_root = shut;
    init.cuda_home = toolkit;
    const auto tried = [&] {
        fs::permissions(folder.path(), fs::perms(0755));
        for (const fs::path& each : closed) fs::permissions(each, fs::perms(0));
        if (::geteuid() == 0 && (::setegid(kNobody) != 0 || ::seteuid(kNobody) != 0)) throw std::runtime_error("uid");
        std::string text;
        for (const jit::Finding& finding : jit::discover(init, {}).findings)
            for (const std::string& place : finding.tried) text += place + "\n";
        return text + message_of([&] { jit::init(shut / "include", {}); });
    };
    const std::string text = in_child({}, tried).value;
    const std::string variable = in_child({{"GDN_CUTLASS_INCLUDE", shut / "cutlass"}}, tried).value;
    for (const fs::path& each : closed) fs::permissions(each, fs::perms(0755));
    EXPECT_CONTAINS(text,
                    "init(library_root) " + shut.string() + ": permission denied: " + shut.string() + " may not be searched");
    EXPECT_CONTAINS(text, "init(cuda_home) " + toolkit.string() + ": permission denied: " + (toolkit / "include").string());
    EXPECT_CONTAINS(text, "init(cuda_home) " + toolkit.string() + ": permission denied: " + (toolkit / "lib64").string());
    EXPECT_CONTAINS(text, "init: library_root: expected a folder that this user may reach (permission denied), got " +
                              (shut / "include").string());
    EXPECT_CONTAINS(variable, "GDN_CUTLASS_INCLUDE: expected a folder that this user may reach (permission denied), got");
}

TEST_F(Layouts, MissingBuiltinsAreNamed) {
    fs::remove(wheels13 / "lib/libnvrtc-builtins.so.13.0");
    write(wheels13 / "lib/libnvrtc-builtins.so.12.9", "another release's");
    SearchPaths hook;
    hook.library_root = library;
    hook.cuda_include = wheels13 / "include";
    const std::string text = find({}, {}, hook, [](const Toolchain& tools) {
        return tools.compiler_identity(false) + message_of([&] { tools.require(false, false); });
    });
    EXPECT_TRUE(text.starts_with("missing")) << text;
    EXPECT_CONTAINS(text, "no libnvrtc-builtins.so.13.* in " + (wheels13 / "lib").string());
    EXPECT_CONTAINS(text, "to fix: pip install --force-reinstall nvidia-cuda-nvrtc");
}

TEST_F(Layouts, NewestNvrtcOfAFolder) {
    EXPECT_EQ(jit::newest_nvrtc(toolkit / "lib64").filename(), "libnvrtc.so.13");
    write(toolkit / "lib64/libnvrtc.so.12", "x");
    EXPECT_EQ(jit::newest_nvrtc(toolkit / "lib64").filename(), "libnvrtc.so.13");
    write(toolkit / "lib64/libnvrtc.so.14.1.2", "x");
    EXPECT_EQ(jit::newest_nvrtc(toolkit / "lib64").filename(), "libnvrtc.so.14.1.2");
    EXPECT_EQ(jit::newest_nvrtc(folder / "nothing"), fs::path());
    EXPECT_EQ(jit::builtins_beside(toolkit / "lib64/libnvrtc.so.12"), fs::path());
}

TEST_F(Layouts, IdentitiesHoldNoPath) {
    const TemporaryFolder other;
    fs::copy(wheels13, other / "moved", fs::copy_options::recursive);
    fs::copy(cutlass, other / "cutlass", fs::copy_options::recursive);
    const auto identity = [](const Toolchain& tools) {
        return tools.compiler_identity(false) + " " + tools.external_headers_identity(false) + " " +
               tools.external_headers_identity(true);
    };
    SearchPaths here, there;
    here.cuda_include = wheels13 / "include", here.cutlass_include = cutlass;
    there.cuda_include = other / "moved/include", there.cutlass_include = other / "cutlass";
    const std::string before = find({}, {}, here, identity);
    EXPECT_EQ(find({}, {}, there, identity), before);

    write(other / "moved/include/cudnn/unrelated.h", "host only");
    EXPECT_EQ(find({}, {}, there, identity), before);
    write(other / "cutlass/cutlass/cutlass.h", "edited");
    const std::string edited = find({}, {}, there, identity);
    EXPECT_NE(edited, before);
    EXPECT_EQ(edited.substr(0, edited.rfind(' ')), before.substr(0, before.rfind(' '))) << "only kernels that use CUTLASS";
    write(other / "moved/include/crt/host_config.h", "edited");
    const std::string again = find({}, {}, there, identity);
    EXPECT_NE(again.substr(0, again.rfind(' ')), edited.substr(0, edited.rfind(' ')));
    write(other / "moved/lib/libnvrtc-builtins.so.13.0", "y");
    EXPECT_NE(find({}, {}, there, identity), again);
}

TEST_F(Layouts, InitIsCheckedAndMayBeRepeated) {
    const auto result = in_child({}, [&] {
        std::string text = message_of([&] { jit::init(folder / "nothing", {}); }) + "\n";
        text += message_of([&] { jit::init({}, folder / "nothing"); }) + "\n";
        jit::init(library, {});
        const fs::path first = jit::toolchain().library_include;
        jit::init(library, {});
        jit::init({}, {});
        jit::init(library / "include", wheels13);  // other paths are accepted, because no kernel is loaded yet
        return text + first.string() + "\n" + jit::toolchain().cuda_include.string();
    });
    EXPECT_EQ(result.value, "init: library_root: expected a folder that exists, got " + (folder / "nothing").string() +
                                "\ninit: cuda_home: expected a folder that exists, got " + (folder / "nothing").string() +
                                "\n" + (library / "include").string() + "\n" + (wheels13 / "include").string());
}

TEST_F(Layouts, AFailedHookIsReportedAndCalledAgain) {
    const auto result = in_child({}, [&] {
        bool fails = true;
        int calls = 0;
        jit::set_path_hook([&]() -> SearchPaths {
            ++calls;
            if (fails) throw jit::Error("no pathfinder");
            SearchPaths found;
            found.library_root = library;
            return found;
        });
        std::string text = message_of([] { jit::library_digest(); });
        fails = false;
        calls = 0;
        for (int i = 0; i < 3; ++i) jit::toolchain();
        return text + std::to_string(calls) + jit::toolchain().library_include.string();
    });
    EXPECT_TRUE(result.value.starts_with("compiling a kernel needs")) << result.value;
    EXPECT_CONTAINS(result.value, "tried wheels: no pathfinder");
    EXPECT_TRUE(result.value.ends_with("1" + (library / "include").string())) << result.value;
}

TEST_F(Layouts, WhatInterruptsTheHookIsForTheCallerAndIsNotRemembered) {
    const auto result = in_child({}, [&] {
        int calls = 0;
        jit::set_path_hook([&]() -> SearchPaths {
            if (++calls == 1) throw std::runtime_error("interrupted");
            return {};
        });
        std::string text = message_of([] { jit::toolchain(); });
        jit::toolchain();
        return text + std::to_string(calls);
    });
    EXPECT_EQ(result.value, "interrupted2");
}

TEST_F(Layouts, AnAnswerOfTheHookServesLaterProcessesUntilItsFoldersChange) {
    const TemporaryFolder cache;
    fs::create_directories(folder / "site");
    const auto calls_in_a_process = [&](const std::string& identity) {
        return in_child({{"GDN_JIT_CACHE_DIR", cache / "cache"}},
                        [&] {
                            int calls = 0;
                            const auto hook = [&] {
                                ++calls;
                                SearchPaths found;
                                found.library_root = library;
                                found.nvrtc = toolkit / "lib64/libnvrtc.so.13";
                                return found;
                            };
                            jit::set_path_hook(hook, [&] { return jit::HookInputs{identity, {folder / "site"}}; });
                            const std::string library_include = jit::toolchain().library_include.string();
                            return library_include + " " + std::to_string(calls);
                        })
            .value;
    };
    const std::string found = (library / "include").string();
    EXPECT_EQ(calls_in_a_process("a"), found + " 1");
    EXPECT_EQ(calls_in_a_process("a"), found + " 1") << "folders this young may change without their times showing it";
    std::this_thread::sleep_for(std::chrono::milliseconds(3100));
    EXPECT_EQ(calls_in_a_process("a"), found + " 1");
    EXPECT_EQ(calls_in_a_process("a"), found + " 0");
    EXPECT_EQ(calls_in_a_process("b"), found + " 1") << "other settings";
    write(folder / "site/cutlass_library/x", "");
    EXPECT_EQ(calls_in_a_process("a"), found + " 1") << "something was installed";
    for (const auto& memo : fs::directory_iterator(cache / "cache/memo")) write(memo.path(), read(memo.path()) + "x");
    EXPECT_EQ(calls_in_a_process("b"), found + " 1") << "a memo that is not as it was written";
}

TEST_F(Layouts, InitRefusesFoldersThatDoNotHoldWhatTheyShould) {
    fs::create_directories(folder / "empty");
    const auto result = in_child({}, [&] {
        jit::init(library, wheels13);
        const std::string text =
            message_of([&] { jit::init(folder / "empty", {}); }) + "\n" + message_of([&] { jit::init({}, folder / "empty"); });
        return text + "\n" + jit::toolchain().library_include.string();
    });
    EXPECT_EQ(result.value,
              "init: library_root: expected a folder with gdn_cuda/kernels or include/gdn_cuda/kernels, got " +
                  (folder / "empty").string() +
                  "\ninit: cuda_home: expected a folder with include/cuda_bf16.h, lib64/libnvrtc.so.* or bin/nvcc (of "
                  "a toolkit, or of CUDA's wheels), got " +
                  (folder / "empty").string() + "\n" + (library / "include").string());
}

}  // namespace
}  // namespace gdn_cuda::test
