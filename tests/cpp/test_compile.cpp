// From source to cubin with the real compilers: NVRTC of the wheels beside torch, and nvcc. Without them the tests are skipped,
// with the reason. GDN_TEST_CUDA12 names a folder nvidia/ of CUDA 12.9 wheels to test as well.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "jit/compiler.hpp"
#include "jit/elf.hpp"
#include "jit/env.hpp"
#include "jit/errors.hpp"
#include "jit/no_compile.hpp"
#include "jit/nvrtc.hpp"
#include "jit/prefetch.hpp"
#include "jit/process.hpp"
#include "jit/runtime.hpp"
#include "jit/store.hpp"
#include "support.hpp"

namespace gdn_cuda::test {
namespace {

namespace fs = std::filesystem;
using jit::KernelSource;
using jit::Origin;

constexpr const char* kArch = "sm_90a";
constexpr const char* kNvcc = "/usr/local/cuda/bin/nvcc";

fs::path site_packages() {
    return fs::canonical(GDN_TEST_SITE_PACKAGES);
}
fs::path cuda_home() {
    for (const char* name : {"nvidia/cu13", "nvidia"})
        for (const char* libraries : {"lib", "cuda_nvrtc/lib"})
            if (!jit::newest_nvrtc(site_packages() / name / libraries).empty()) return site_packages() / name;
    return {};
}

struct Compile : ::testing::Test {
    TemporaryFolder folder;
    const fs::path cache = folder / "the cache", root = folder / "lib rary", header = root / "gdn_cuda/kernels/gdn/toy.cuh";
    fs::path home = cuda_home();
    KernelSource source{
        "gdn", "toy", "{.scale = 2}",
        "#include <gdn_cuda/kernels/gdn/toy.cuh>\ntemplate __global__ void toy::scale<toy::Config{.scale = 2}>(float*);\n",
        false};

    void SetUp() override {
        if (home.empty()) GTEST_SKIP() << "no NVRTC wheel in " << site_packages();
        write(header,
              "#pragma once\n#include <cuda_bf16.h>\nnamespace toy {\nstruct Config { int scale; };\n"
              "template <Config kConfig> __global__ void scale(float* x) {\n    __shared__ float all[32];\n    "
              "all[threadIdx.x] = x[threadIdx.x];\n"
              "    __syncthreads();\n    x[threadIdx.x] = all[31 - threadIdx.x] * kConfig.scale;\n}\n}  // namespace toy\n");
    }

    Environment environment(const Environment& more = {}) const {
        Environment all = {{"GDN_JIT_CACHE_DIR", cache}, {"GDN_CUDA_HOME", home}};
        all.insert(all.end(), more.begin(), more.end());
        return all;
    }
    // Calls obtain() in a new process, and returns the origin.
    ChildResult obtain(const Environment& more = {}, const std::string& arch = kArch, bool force = false) {
        return in_child(environment(more), [&] {
            jit::init(root, {});
            const jit::Obtained obtained = jit::obtain(source, arch, force);
            if (jit::kernel_symbols(obtained.cubin.bytes) != std::vector<std::string>{obtained.cubin.symbol})
                return std::string("bad cubin");
            return std::string(to_string(obtained.origin));
        });
    }
    std::ptrdiff_t drafts() const {
        return std::count_if(fs::directory_iterator(cache), {}, [](const fs::directory_entry& entry) {
            return entry.path().filename().string().starts_with(".gdn_cuda-draft-");
        });
    }
    std::vector<fs::path> entries(const char* extension = ".cubin") const {
        std::vector<fs::path> result;
        std::error_code none;
        for (const auto& entry : fs::directory_iterator(cache, none))
            if (entry.path().extension() == extension) result.push_back(entry.path());
        return result;
    }
};

TEST_F(Compile, OnceThenFromDiskWithoutOpeningNvrtc) {
    EXPECT_EQ(obtain().value, "compiled");
    const auto second = in_child(environment(), [&] {
        jit::init(root, {});
        const auto obtained = jit::obtain(source, kArch);
        return std::string(to_string(obtained.origin)) + (contains(read("/proc/self/maps"), "nvrtc") ? " opened" : " unopened");
    });
    EXPECT_EQ(second.value, "disk unopened");
    EXPECT_EQ(entries().size(), 1u);
    EXPECT_EQ(obtain({}, kArch, true).value, "compiled") << "forced";
    EXPECT_EQ(obtain({}, "sm_80").value, "compiled");
    EXPECT_EQ(entries().size(), 2u);
}

TEST_F(Compile, ADiskHitIsQuick) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2100));  // so that the memos trust the header's age
    const auto seconds_of = [&](Origin origin) {
        const auto obtained = in_child(environment(), [&] {
            jit::init(root, {});
            const auto start = std::chrono::steady_clock::now();
            const auto found = jit::obtain(source, kArch);
            const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
            return found.origin == origin ? std::to_string(took.count()) : std::string("from elsewhere");
        });
        return std::stod(obtained.value);
    };
    const double compile = seconds_of(Origin::compiled);
    double best = compile;
    for (int i = 0; i < 5; ++i) best = std::min(best, seconds_of(Origin::disk));
    RecordProperty("milliseconds", std::to_string(best * 1e3));
    std::printf("disk hit of a fresh process: %.2f ms, a compile: %.2f ms\n", best * 1e3, compile * 1e3);
    EXPECT_LT(best, 0.5 * compile) << "a few milliseconds on a quiet machine, with sanitizers ten times that";
}

TEST_F(Compile, PrintSaysWhatWasUsed) {
    const auto result = obtain({{"GDN_JIT_PRINT", "1"}});
    int registers = 0, shared = 0, spills = -1, stack = -1;
    double seconds = 0;
    ASSERT_EQ(std::sscanf(result.stderr_text.c_str(),
                          "compiled gdn/toy {.scale = 2} in %lf s: %d registers, %d B shared, %d B spills, %d B stack\n",
                          &seconds, &registers, &shared, &spills, &stack),
              5)
        << result.stderr_text;
    EXPECT_GT(registers, 0);
    EXPECT_EQ(shared, 128);
    EXPECT_EQ(spills, 0);
    EXPECT_EQ(stack, 0);
    EXPECT_EQ(obtain({{"GDN_JIT_PRINT", "1"}}).stderr_text, "") << "a hit compiles nothing";
}

TEST_F(Compile, LineInfoIsAnotherKey) {
    EXPECT_EQ(obtain().value, "compiled");
    EXPECT_EQ(obtain({{"GDN_JIT_LINEINFO", "1"}}).value, "compiled");
    EXPECT_EQ(entries().size(), 2u);
}

TEST_F(Compile, CubinsAreReproducible) {
    EXPECT_EQ(obtain().value, "compiled");
    const std::string first = read(entries().at(0));
    EXPECT_EQ(obtain({}, kArch, true).value, "compiled");
    EXPECT_EQ(read(entries().at(0)), first);
}

TEST_F(Compile, AMovedOrTouchedTreeHitsAnEditedOneMisses) {
    EXPECT_EQ(obtain().value, "compiled");
    set_age(header, std::chrono::hours(1));
    EXPECT_EQ(obtain().value, "disk");
    const fs::path moved = folder / "moved";
    fs::rename(root, moved);
    fs::create_directory_symlink(moved, root);
    EXPECT_EQ(obtain().value, "disk");
    std::string text = read(moved / "gdn_cuda/kernels/gdn/toy.cuh");
    text[text.find("31 -")] = '2', text[text.find("21 -") + 1] = '3';  // the same length
    write(moved / "gdn_cuda/kernels/gdn/toy.cuh", text);
    EXPECT_EQ(obtain().value, "compiled");
}

TEST_F(Compile, DamagedEntriesAreRebuilt) {
    EXPECT_EQ(obtain().value, "compiled");
    const fs::path entry = entries().at(0);
    const std::string whole = read(entry);
    std::string flipped = whole;
    flipped[whole.size() / 2] ^= 4;
    for (const std::string& damaged : {whole.substr(0, whole.size() / 2), flipped, std::string("ELF?"), std::string()}) {
        write(entry, damaged);
        const auto result = obtain();
        EXPECT_EQ(result.value, "compiled");
        EXPECT_CONTAINS(result.stderr_text, "it is compiled again");
        EXPECT_EQ(read(entry), whole);
        EXPECT_EQ(obtain().value, "disk");
    }
}

TEST_F(Compile, AnErrorHasWhatReproducesItAndLeavesNoFile) {
    source.code += "this does not compile;\n";
    const auto result = obtain();
    EXPECT_CONTAINS(result.value, "error: gdn/toy {.scale = 2} did not compile for sm_90a\ncompiler: NVRTC ");
    EXPECT_CONTAINS(result.value, "options: --gpu-architecture=sm_90a --std=c++20");
    EXPECT_CONTAINS(result.value, "gdn_toy.cu(3): error");
    EXPECT_CONTAINS(result.value, "    3 | this does not compile;\n");
    EXPECT_CONTAINS(result.value, "-x cu - -cubin -o /dev/null");
    EXPECT_CONTAINS(result.value, "<<'GDN_SOURCE'");
    EXPECT_TRUE(entries().empty());
    EXPECT_EQ(drafts(), 0);
}

TEST_F(Compile, TheCommandInTheErrorReproducesIt) {
    if (!fs::exists(kNvcc)) GTEST_SKIP() << "no " << kNvcc;
    const std::string good = source.code;
    for (const bool broken : {true, false}) {
        source.code = good + (broken ? "this does not compile;\n" : "");
        const auto text = in_child(environment({{"GDN_JIT_NVCC", kNvcc}}), [&] {
            jit::init(root, {});
            return jit::compile_failure(source, kArch, "any", {}, "", jit::toolchain());
        });
        const std::string marker = "to reproduce it in a shell:\n";
        ASSERT_TRUE(contains(text.value, marker));
        const auto run = jit::run_process({"/bin/sh", "-c", text.value.substr(text.value.find(marker) + marker.size())});
        EXPECT_EQ(run.exit_code != 0, broken) << run.output;
        EXPECT_EQ(contains(run.output, "error"), broken);
    }
}

TEST_F(Compile, ASourceWithoutExactlyOneKernelIsAnError) {
    const std::string one = source.code;
    source.code = "#include <gdn_cuda/kernels/gdn/toy.cuh>\n";
    EXPECT_CONTAINS(obtain().value, "expected exactly one kernel in the cubin, got 0");
    source.code = one + "template __global__ void toy::scale<toy::Config{.scale = 3}>(float*);\n";
    EXPECT_CONTAINS(obtain().value, "expected exactly one kernel in the cubin, got 2");
    EXPECT_TRUE(entries().empty());
}

TEST_F(Compile, AFunctionThatIsCalledIsNoEntry) {
    source.code =
        "__device__ __noinline__ float twice(float x) { return x * x + 2; }\n__global__ void k(float* x) { *x = twice(*x); }\n";
    EXPECT_EQ(obtain().value, "compiled");
}

TEST_F(Compile, AnArchTheCompilerDoesNotKnow) {
    const auto result = obtain({}, "sm_199a");
    EXPECT_CONTAINS(result.value, "error: gdn/toy: NVRTC ");
    EXPECT_CONTAINS(result.value, "does not compile for sm_199a; it knows sm_");
}

TEST_F(Compile, ManyProcessesStartingColdCompileOnce) {
    std::vector<pid_t> children;
    for (int i = 0; i < 16; ++i)
        children.push_back(start_child([&] {
            return in_child(environment({{"GDN_JIT_PRINT", "1"}}),
                            [&] {
                                jit::init(root, {});
                                return std::string(to_string(jit::obtain(source, kArch).origin));
                            }).value == "compiled"
                       ? 7
                       : 0;
        }));
    int compiled = 0;
    for (pid_t child : children) compiled += wait_for(child) == 7 ? 1 : 0;
    EXPECT_EQ(compiled, 1);
    EXPECT_EQ(entries().size(), 1u);
}

TEST_F(Compile, ManyThreadsCompileOnceAndAFailureIsTriedAgain) {
    const auto result = in_child(environment(), [&] {
        jit::init(root, {});
        std::atomic<int> compiled{0}, failed{0};
        const auto all = [&](const KernelSource& of) {
            std::vector<std::thread> threads;
            for (int i = 0; i < 8; ++i)
                threads.emplace_back([&] {
                    try {
                        compiled += jit::obtain(of, kArch).origin == Origin::compiled ? 1 : 0;
                    } catch (const jit::Error&) {
                        ++failed;
                    }
                });
            for (std::thread& thread : threads) thread.join();
        };
        all(source);
        KernelSource broken = source;
        broken.code += "error;";
        all(broken);
        write(header, read(header) + "#define error\n");  // now it does compile
        all(broken);
        return std::to_string(compiled) + " " + std::to_string(failed);
    });
    EXPECT_EQ(result.value, "2 8");
}

TEST_F(Compile, WhatIsPrefetchedIsCompiledOnceAndItsErrorIsObtains) {
    const auto result = in_child(environment(), [&] {
        jit::init(root, {});
        jit::allow_prefetch();
        KernelSource broken = source;
        broken.code += "#error wrong";
        for (int i = 0; i < 3; ++i)
            for (const KernelSource& each : {source, broken}) jit::prefetch(each, kArch);
        while (entries().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        const std::string origin = to_string(jit::obtain(source, kArch).origin);
        fs::remove(entries().front());
        jit::prefetch(source, kArch);
        const auto error = message_of([&] { jit::obtain(broken, kArch); });
        return origin + (contains(error, "wrong") ? ", refused" : error) + (entries().empty() ? "" : ", again");
    });
    EXPECT_EQ(result.value, "disk, refused");
}

TEST_F(Compile, PrefetchesStayOutOfNvrtcBeforeAProcessExits) {
    const auto result = in_child(environment(), [&] {
        jit::init(root, {});
        jit::allow_prefetch();
        jit::prefetch(source, kArch);
        while (jit::inside_nvrtc() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        jit::keep_background_out_of_nvrtc();
        KernelSource late = source;
        late.code += "// late";
        jit::prefetch(late, kArch);
        while (jit::inside_nvrtc() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        std::this_thread::sleep_for(std::chrono::milliseconds(500));
        return std::to_string(entries().size());
    });
    EXPECT_EQ(result.value, "1");
}

TEST_F(Compile, NothingIsPrefetchedUnlessItIsAllowed) {
    const auto result = in_child(environment(), [&] {
        jit::init(root, {});
        jit::prefetch(source, kArch);
        std::this_thread::sleep_for(std::chrono::milliseconds(500));
        return std::to_string(entries().size());
    });
    EXPECT_EQ(result.value, "0");
}

TEST_F(Compile, NothingIsPrefetchedWhereCompilingIsRefused) {
    const auto result = in_child(environment(), [&] {
        jit::init(root, {});
        jit::allow_prefetch();
        jit::enter_no_compile();
        jit::prefetch(source, kArch);
        jit::leave_no_compile();
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        const std::size_t before = entries().size();
        return std::to_string(before) + to_string(jit::obtain(source, kArch).origin);
    });
    EXPECT_EQ(result.value, "0compiled");
}

TEST_F(Compile, AKilledCompileFreesItsKey) {
    const pid_t victim = start_child([&] {
        in_child(environment(), [&] {
            jit::init(root, {});
            const jit::KeyLock lock(cache, jit::full_key(source, kArch));
            write(folder / "held", "held");
            std::this_thread::sleep_for(std::chrono::milliseconds(300));
            ::raise(SIGKILL);
            return std::string();
        });
        return 0;
    });
    while (read(folder / "held").empty()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(obtain().value, "compiled");
    wait_for(victim);
}

TEST_F(Compile, AHeaderEditedInALongLivedProcessIsSeen) {
    const auto result = in_child(environment(), [&] {
        jit::init(root, {});
        const std::string first = jit::full_key(source, kArch);
        write(header, read(header) + "// edited after the digest was taken\n");
        std::string text = to_string(jit::obtain(source, kArch).origin);
        text += jit::full_key(source, kArch) == first ? " same key" : " new key";
        return text + (fs::exists(jit::Store::instance().entry_path(source.id(), first)) ? " poisoned" : " clean");
    });
    EXPECT_EQ(result.value, "compiled new key clean");
}

TEST_F(Compile, AFullDiskKeepsItInMemory) {
    const auto result = in_child(environment(), [&] {
        jit::init(root, {});
        jit::full_key(source, kArch);
        ::signal(SIGXFSZ, SIG_IGN);
        const rlimit limit{512, 512};
        ::setrlimit(RLIMIT_FSIZE, &limit);
        std::string text = to_string(jit::obtain(source, kArch).origin);
        text += std::string(" ") + to_string(jit::obtain(source, kArch).origin);
        const rlimit none{RLIM_INFINITY, RLIM_INFINITY};
        ::setrlimit(RLIMIT_FSIZE, &none);
        return text;
    });
    EXPECT_EQ(result.value, "compiled memory");
    EXPECT_TRUE(entries().empty());
}

TEST_F(Compile, MemoryOnlyWorks) {
    home = cuda_home();
    const auto result = in_child(
        {{"GDN_JIT_CACHE_DIR", "/proc/x"}, {"HOME", "/proc"}, {"TMPDIR", "/nonexistent"}, {"GDN_CUDA_HOME", home}}, [&] {
            jit::init(root, {});
            std::string text = to_string(jit::obtain(source, kArch).origin);
            return text + " " + to_string(jit::obtain(source, kArch).origin);
        });
    EXPECT_EQ(result.value, "compiled memory");
}

TEST_F(Compile, DisabledIsAnErrorThatNamesTheKernel) {
    const auto result = obtain({{"GDN_JIT_DISABLE", "1"}});
    EXPECT_CONTAINS(result.value, "error: gdn/toy {.scale = 2} is not compiled for sm_90a");
    EXPECT_CONTAINS(result.value, "python -m gdn_cuda compile --arch sm_90a");
    EXPECT_EQ(obtain().value, "compiled");
    EXPECT_EQ(obtain({{"GDN_JIT_DISABLE", "1"}}).value, "disk");
}

TEST_F(Compile, NoCompileRefusesUntilTheLastOneIsLeft) {
    const auto result = in_child(environment(), [&] {
        jit::init(root, {});
        const auto origin = [&] { return std::string(to_string(jit::obtain(source, kArch).origin)); };
        jit::enter_no_compile();
        jit::enter_no_compile();
        std::string text = message_of(origin) + "\n";
        jit::leave_no_compile();
        std::thread([&] { text += message_of(origin) + "\n"; }).join();
        jit::leave_no_compile();
        text += origin();
        jit::enter_no_compile();
        return text + " " + origin();
    });
    const std::string refusal =
        "gdn/toy {.scale = 2} is not compiled for sm_90a, and gdn_cuda.no_compile() refuses to compile it";
    EXPECT_CONTAINS(result.value, refusal);
    EXPECT_NE(result.value.find(refusal), result.value.rfind(refusal)) << "in another thread too";
    EXPECT_CONTAINS(result.value, "\ncompiled disk");
}

TEST_F(Compile, PrebuiltNeedsNoCompiler) {
    const std::string out = (folder / "prebuilt here").string();
    const auto exported = in_child(environment(), [&] {
        jit::init(root, {});
        return std::string(to_string(jit::export_prebuilt(source, kArch, out).origin));
    });
    EXPECT_EQ(exported.value, "compiled");
    const Environment slim = {
        {"GDN_JIT_PREBUILT_DIR", out}, {"GDN_JIT_DISABLE", "1"}, {"HOME", "/proc"}, {"TMPDIR", "/nonexistent"}};
    const auto get = [&] {
        jit::init(root, {});
        return std::string(to_string(jit::obtain(source, kArch).origin));
    };
    EXPECT_EQ(in_child(slim, get).value, "prebuilt");
    source.code += "\n";
    EXPECT_CONTAINS(in_child(slim, get).value, "GDN_JIT_DISABLE forbids");
    EXPECT_CONTAINS(in_child(environment(),
                             [&] {
                                 jit::init(root, {});
                                 jit::export_prebuilt(source, kArch, "/proc/nowhere");
                                 return std::string();
                             })
                        .value,
                    "error: gdn/toy: expected a writable folder, got /proc/nowhere: cannot make");
}

TEST_F(Compile, DumpsAreBesideTheEntry) {
    EXPECT_EQ(obtain().value, "compiled");
    EXPECT_EQ(obtain({{"GDN_JIT_DUMP", "1"}}).value, "compiled") << "again, for the dumps";
    EXPECT_EQ(obtain({{"GDN_JIT_DUMP", "1"}}).value, "disk");
    ASSERT_EQ(entries().size(), 1u);
    const fs::path entry = entries()[0];
    EXPECT_TRUE(read(fs::path(entry).replace_extension(".cu")).starts_with(source.code + "// gdn_cuda dump "));
    EXPECT_CONTAINS(read(fs::path(entry).replace_extension(".ptx")), ".entry");
    if (!fs::exists(home / "bin/nvdisasm")) GTEST_SKIP() << "no nvdisasm in " << home;
    EXPECT_CONTAINS(read(fs::path(entry).replace_extension(".sass")), "EXIT");
}

TEST_F(Compile, MissingBuiltinsAreNamed) {
    const fs::path copy = folder / "cuda";
    fs::create_directories(copy / "lib");
    fs::create_directory_symlink(home / "include", copy / "include");
    const fs::path nvrtc = jit::newest_nvrtc(home / "lib");
    if (nvrtc.empty()) GTEST_SKIP() << "not the layout of CUDA 13 wheels";
    fs::copy(nvrtc, copy / "lib" / nvrtc.filename());
    home = copy;
    const auto result = obtain();
    EXPECT_CONTAINS(result.value, "no libnvrtc-builtins.so.");
    EXPECT_CONTAINS(result.value, "to fix: pip install --force-reinstall nvidia-cuda-nvrtc");
    EXPECT_FALSE(contains(result.value, "did not compile"));
}

TEST_F(Compile, AForkedChildMayCompile) {
    const auto result = in_child(environment(), [&] {
        jit::init(root, {});
        std::string text = to_string(jit::obtain(source, kArch).origin);
        source.code += "\n";
        const int code = wait_for(start_child([&] { return jit::obtain(source, kArch).origin == Origin::compiled ? 0 : 1; }));
        return text + " " + std::to_string(code);
    });
    EXPECT_EQ(result.value, "compiled 0");
}

TEST_F(Compile, CutlassHeadersAreFoundAndCount) {
    const fs::path original = site_packages() / "cutlass_library/source/include";
    if (!fs::exists(original)) GTEST_SKIP() << "no nvidia-cutlass in " << site_packages();
    const fs::path cutlass = folder / "cutlass";
    fs::copy(original, cutlass, fs::copy_options::recursive);
    source.uses_cutlass = true;
    source.code = "#include <cute/arch/mma_sm90_gmma.hpp>\n#include <cuda/std/type_traits>\n" + source.code;
    const Environment with = {{"GDN_CUTLASS_INCLUDE", cutlass}};
    EXPECT_EQ(obtain(with).value, "compiled");
    EXPECT_EQ(obtain(with).value, "disk");
    std::string text = read(cutlass / "cute/arch/mma_sm90_gmma.hpp");
    write(cutlass / "cute/arch/mma_sm90_gmma.hpp", text + "// edited\n");
    EXPECT_EQ(obtain(with).value, "compiled");
}

TEST_F(Compile, Cuda12) {
    const char* wheels = std::getenv("GDN_TEST_CUDA12");
    if (wheels == nullptr) GTEST_SKIP() << "GDN_TEST_CUDA12 is not set";
    EXPECT_EQ(obtain().value, "compiled");
    home = wheels;
    const auto result = obtain({{"GDN_JIT_PRINT", "1"}, {"GDN_JIT_LINEINFO", "1"}, {"GDN_JIT_DUMP", "1"}});
    EXPECT_EQ(result.value, "compiled");
    EXPECT_CONTAINS(result.stderr_text, "128 B shared, 0 B spills, 0 B stack");
    EXPECT_EQ(obtain().value, "compiled") << "another compiler, another key";
    EXPECT_EQ(obtain().value, "disk");
    EXPECT_CONTAINS(obtain({}, "sm_110a").value, "NVRTC 12.9 (");
}

struct Nvcc : Compile {
    void SetUp() override {
        if (!fs::exists(kNvcc)) GTEST_SKIP() << "no " << kNvcc;
        Compile::SetUp();
    }
    const Environment with = {{"GDN_JIT_USE_NVCC", "1"}, {"GDN_JIT_NVCC", kNvcc}};
};

TEST_F(Nvcc, CompilesThenHits) {
    Environment all = with;
    all.emplace_back("GDN_JIT_PRINT", "1");
    all.emplace_back("GDN_JIT_DUMP", "1");
    const auto result = obtain(all);
    EXPECT_EQ(result.value, "compiled");
    EXPECT_CONTAINS(result.stderr_text, "128 B shared, 0 B spills, 0 B stack");
    EXPECT_CONTAINS(read(fs::path(entries().at(0)).replace_extension(".ptx")), ".entry");
    EXPECT_EQ(obtain(with).value, "disk");
    EXPECT_EQ(obtain().value, "compiled") << "NVRTC's is another key";
}

TEST_F(Nvcc, ErrorsAndOddSurroundings) {
    Environment all = with;
    all.emplace_back("TMPDIR", "/nonexistent");  // its files then go into the cache's folder
    EXPECT_EQ(obtain(all).value, "compiled");
    source.code += "this does not compile;\n";
    const auto result = obtain(with);
    EXPECT_CONTAINS(result.value, "(exit status ");
    EXPECT_CONTAINS(result.value, "    3 | this does not compile;");
    EXPECT_EQ(entries().size(), 1u);
    EXPECT_EQ(drafts(), 0);
}

TEST_F(Nvcc, AHostThatIgnoresItsChildren) {
    const auto result = in_child(environment(with), [&] {
        ::signal(SIGCHLD, SIG_IGN);
        jit::init(root, {});
        std::string text = to_string(jit::obtain(source, kArch).origin);
        source.code += "this does not compile;\n";
        return text + message_of([&] { jit::obtain(source, kArch); });
    });
    EXPECT_TRUE(result.value.starts_with("compiledgdn/toy")) << result.value;
    EXPECT_CONTAINS(result.value, "its output cannot be used");
}

TEST_F(Nvcc, AnNvccThatDoesNotRun) {
    write(folder / "nvcc", "not a program");
    EXPECT_CONTAINS(obtain({{"GDN_JIT_USE_NVCC", "1"}, {"GDN_JIT_NVCC", folder / "nvcc"}}).value,
                    "expected a working nvcc, got:");
}

}  // namespace
}  // namespace gdn_cuda::test
