// Loading and launching against a driver made up for it: what is packed, what is refused, and what the warm path costs.
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>

#include "jit/context.hpp"
#include "jit/device.hpp"
#include "jit/driver.hpp"
#include "jit/errors.hpp"
#include "jit/kernel.hpp"
#include "jit/store.hpp"
#include "support.hpp"

namespace {
std::atomic<long> allocations{0};
}

// Counts what the warm path allocates. Not inlined, or g++ takes free() for the wrong partner of new.
[[gnu::noinline]] void* operator new(std::size_t size) {
    ++allocations;
    if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
    throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
    std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
    std::free(memory);
}

namespace gdn_cuda::test {
namespace {

namespace fs = std::filesystem;
using jit::KernelSource;
using jit::LaunchShape;
using jit::LoadedKernel;

// Everything the fake driver was asked and what it shall answer.
struct Fake {
    int capability = 90, devices = 2, shared = 227 << 10;
    CUcontext context = reinterpret_cast<CUcontext>(0x10);
    CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult capture_result = CUDA_SUCCESS, load_result = CUDA_SUCCESS, kernel_result = CUDA_SUCCESS,
             launch_result = CUDA_SUCCESS;
    bool launch_needs_context = false;
    int loads = 0, unloads = 0, launches = 0, retains = 0, releases = 0, forced = 0;
    CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    int breaking_calls = 0;  // that would break another thread's capture in global mode
    std::string symbol;
    std::vector<std::pair<int, CUdevice>> shared_opt_in;
    CUlaunchConfig config{};
    std::vector<CUlaunchAttribute> attributes;
    int clusters = 3;
    std::vector<std::pair<CUfunction_attribute, CUdevice>> cluster_opt_in;
    CUresult cluster_result = CUDA_SUCCESS;
    CUfunction function = nullptr;
    int argument = 0;

    void may_allocate() { breaking_calls += capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED ? 0 : 1; }
    void keep(const CUlaunchConfig& given) {
        config = given;
        attributes.assign(given.attrs, given.attrs + given.numAttrs);
    }
} fake;

const jit::Driver kTable = {
    .init = [](unsigned) { return CUDA_SUCCESS; },
    .driver_version = [](int* version) { return *version = 12080, CUDA_SUCCESS; },
    .get_error_string = [](CUresult, const char** text) { return *text = "made up", CUDA_SUCCESS; },
    .device_count = [](int* count) { return *count = fake.devices, CUDA_SUCCESS; },
    .device_get = [](CUdevice* device, int ordinal) { return *device = 100 + ordinal, CUDA_SUCCESS; },
    .device_name = [](char* name, int, CUdevice) { return std::strcpy(name, "Made-up GPU"), CUDA_SUCCESS; },
    .device_attribute =
        [](int* value, CUdevice_attribute which, CUdevice) {
            *value = which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR            ? fake.capability / 10
                     : which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR          ? fake.capability % 10
                     : which == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN ? fake.shared
                                                                                      : 7;
            return CUDA_SUCCESS;
        },
    .ctx_get_current = [](CUcontext* context) { return *context = fake.context, CUDA_SUCCESS; },
    .ctx_set_current = [](CUcontext context) { return fake.context = context, CUDA_SUCCESS; },
    .primary_ctx_retain =
        [](CUcontext* context, CUdevice device) {
            ++fake.retains;
            fake.may_allocate();
            *context = reinterpret_cast<CUcontext>(static_cast<std::uintptr_t>(device));
            return CUDA_SUCCESS;
        },
    .primary_ctx_release = [](CUdevice) { return ++fake.releases, CUDA_SUCCESS; },
    .exchange_capture_mode = [](CUstreamCaptureMode* mode) { return std::swap(*mode, fake.capture_mode), CUDA_SUCCESS; },
    .library_load_data =
        [](CUlibrary* library, const void*, CUjit_option*, void**, unsigned, CUlibraryOption*, void**, unsigned) {
            ++fake.loads;
            fake.may_allocate();
            *library = reinterpret_cast<CUlibrary>(0x20);
            return fake.load_result;
        },
    .library_unload = [](CUlibrary) { return ++fake.unloads, CUDA_SUCCESS; },
    .library_get_kernel =
        [](CUkernel* kernel, CUlibrary, const char* symbol) {
            fake.symbol = symbol;
            *kernel = reinterpret_cast<CUkernel>(0x30);
            return fake.kernel_result;
        },
    .kernel_get_function =
        [](CUfunction*, CUkernel) {
            fake.may_allocate();
            return ++fake.forced, CUDA_SUCCESS;
        },
    .kernel_set_attribute =
        [](CUfunction_attribute which, int value, CUkernel, CUdevice device) {
            fake.may_allocate();
            if (which != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
                EXPECT_EQ(value, 1);
                return fake.cluster_opt_in.emplace_back(which, device), fake.cluster_result;
            }
            return fake.shared_opt_in.emplace_back(value, device), CUDA_SUCCESS;
        },
    .stream_is_capturing = [](CUstream,
                              CUstreamCaptureStatus* status) { return *status = fake.capturing, fake.capture_result; },
    .launch =
        [](const CUlaunchConfig* config, CUfunction function, void** parameters, void**) {
            ++fake.launches;
            if (fake.launch_needs_context && fake.context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
            fake.keep(*config);
            fake.function = function;
            std::memcpy(&fake.argument, parameters[0], sizeof fake.argument);
            return fake.launch_result;
        },
    .most_clusters =
        [](int* most, CUfunction function, const CUlaunchConfig* config) {
            fake.keep(*config);
            fake.function = function;
            return *most = fake.clusters, CUDA_SUCCESS;
        },
};

struct Toy {
    struct Config {
        int scale;
        bool operator==(const Config&) const = default;
    };
    static KernelSource source(const Config& config) {
        return {"gdn", "toy", "{.scale = " + std::to_string(config.scale) + "}", "kernel " + std::to_string(config.scale),
                false};
    }
    static int shared_bytes(const Config&) { return 1000; }
};

CUstream stream() {
    return reinterpret_cast<CUstream>(0x40);
}

// Kernels come from a prebuilt folder, so that no compiler is needed.
struct Launch : ::testing::Test {
    TemporaryFolder folder;
    const fs::path prebuilt = folder / "prebuilt";
    const KernelSource source = Toy::source({1});

    Launch() {
        write(folder / "include/gdn_cuda/kernels/gdn/toy.cuh", "");
        fs::create_directories(prebuilt);
    }
    std::string run(const std::function<std::string()>& body) {
        const auto result = in_child({{"GDN_JIT_PREBUILT_DIR", prebuilt}, {"GDN_JIT_DISABLE", "1"}}, [&] {
            jit::init(folder / "include", {});
            jit::install_driver(&kTable);
            for (int scale : {1, 2}) {
                jit::Store store(prebuilt, ~std::uint64_t{0}, jit::Store::Access::exported);
                store.publish("gdn/toy", jit::code_key(Toy::source({scale}), jit::arch_of(fake.capability)),
                              cubin_of("the_kernel"));
            }
            return body();
        });
        return result.value + result.stderr_text;
    }
};

TEST_F(Launch, LoadsOnceForAllDevices) {
    EXPECT_EQ(run([&] {
                  const LoadedKernel first = jit::load(source, 0, stream(), 100),
                                     second = jit::load(source, 1, stream(), 100 << 10);
                  EXPECT_EQ(first.handle, second.handle);
                  EXPECT_EQ(first.id, "gdn/toy");
                  EXPECT_EQ(fake.loads, 1);
                  EXPECT_EQ(fake.forced, 1) << "not lazily";
                  EXPECT_EQ(fake.retains, 0) << "there is a context";
                  EXPECT_EQ(fake.symbol, "the_kernel");
                  EXPECT_EQ(fake.shared_opt_in, (std::vector<std::pair<int, CUdevice>>{{100 << 10, 101}}));
                  const auto events = jit::load_events();
                  EXPECT_EQ(events.size(), 2u);
                  EXPECT_EQ(events.at(0).origin, "prebuilt");
                  EXPECT_EQ(events.at(0).arch, "sm_90a");
                  EXPECT_TRUE(jit::any_kernel_loaded());
                  return std::string(::testing::Test::HasFailure() ? "failed" : "fine");
              }),
              "fine");
}

TEST_F(Launch, WithoutAContextThePrimaryOneIsUsed) {
    EXPECT_EQ(run([&] {
                  fake.context = nullptr;
                  fake.capture_result = CUDA_ERROR_INVALID_CONTEXT;  // must not be asked then
                  jit::load(source, 1, stream(), 0);
                  return std::to_string(fake.retains) + " " + std::to_string(reinterpret_cast<std::uintptr_t>(fake.context));
              }),
              "1 101");
}

TEST_F(Launch, AColdKernelUnderCaptureIsRefusedBeforeAnythingIsLoaded) {
    for (const CUresult result : {CUDA_SUCCESS, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT}) {
        const std::string text = run([&] {
            fake.capturing = CU_STREAM_CAPTURE_STATUS_ACTIVE;
            fake.capture_result = result;
            const std::string message = message_of([&] { jit::load(source, 0, stream(), 0); });
            return std::to_string(fake.loads + fake.forced) + " " + message;
        });
        EXPECT_EQ(text,
                  "0 gdn/toy {.scale = 1}: a cold kernel cannot be loaded under CUDA graph capture; call gdn_cuda.warmup() or "
                  "run the operator "
                  "once before capturing");
    }
}

TEST_F(Launch, FailedLoadsSayWhatAndMayBeRepeated) {
    const std::string text = run([&] {
        fake.load_result = CUDA_ERROR_NO_BINARY_FOR_GPU;
        std::string messages = message_of([&] { jit::load(source, 0, stream(), 0); }) + "\n";
        fake.load_result = CUDA_SUCCESS;
        fake.kernel_result = CUDA_ERROR_NOT_FOUND;
        messages += message_of([&] { jit::load(source, 0, stream(), 0); });
        messages += "\n" + std::to_string(fake.unloads) + "\n";
        fake.kernel_result = CUDA_SUCCESS;
        messages += message_of([&] { jit::load(source, 0, stream(), 228 << 10); }) + "\n";
        messages += message_of([&] { jit::load(source, 2, stream(), 0); }) + "\n";
        return messages + jit::load(source, 0, stream(), 0).id;
    });
    EXPECT_CONTAINS(text, "gdn/toy: loading its cubin for sm_90a on Made-up GPU (driver for CUDA 12.8;");
    EXPECT_CONTAINS(text, "made up (CUDA error 209)");
    EXPECT_CONTAINS(text, "gdn/toy: finding the_kernel in its cubin: made up (CUDA error 500)\n1\n");
    EXPECT_CONTAINS(text, "needs 233472 bytes of shared memory a block; Made-up GPU (sm_90a) has 232448");
    EXPECT_CONTAINS(text, "device: expected an ordinal below 2, got 2\ngdn/toy");
}

TEST_F(Launch, PacksWhatItIsGiven) {
    EXPECT_EQ(run([&] {
                  const LoadedKernel kernel = jit::load(source, 0, stream(), 0);
                  const int argument = 42;
                  jit::launch(kernel, {.grid = {5, 6, 7}, .threads = 128, .shared_bytes = 1024, .early_start = true}, 0,
                              stream(), &argument);
                  EXPECT_EQ(fake.config.gridDimX, 5u);
                  EXPECT_EQ(fake.config.gridDimY, 6u);
                  EXPECT_EQ(fake.config.gridDimZ, 7u);
                  EXPECT_EQ(fake.config.blockDimX, 128u);
                  EXPECT_EQ(fake.config.blockDimY * fake.config.blockDimZ, 1u);
                  EXPECT_EQ(fake.config.sharedMemBytes, 1024u);
                  EXPECT_EQ(fake.config.hStream, stream());
                  EXPECT_EQ(fake.attributes.size(), 1u);
                  EXPECT_EQ(fake.attributes.at(0).id, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
                  EXPECT_EQ(fake.attributes.at(0).value.programmaticStreamSerializationAllowed, 1);
                  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(fake.function), 0x30u);
                  EXPECT_EQ(fake.argument, 42);
                  jit::launch(kernel, {}, 0, nullptr, &argument);
                  EXPECT_EQ(fake.config.numAttrs, 0u);
                  jit::launch(kernel, {.grid = {32, 1, 1}, .cluster = 16, .early_start = true}, 0, nullptr, &argument);
                  EXPECT_EQ(fake.attributes.size(), 2u);
                  EXPECT_EQ(fake.attributes.at(1).id, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
                  EXPECT_EQ(fake.attributes.at(1).value.clusterDim.x, 16u);
                  EXPECT_EQ(fake.attributes.at(1).value.clusterDim.y, 1u);
                  EXPECT_EQ(fake.attributes.at(1).value.clusterDim.z, 1u);
                  return std::string(::testing::Test::HasFailure() ? "failed" : "fine");
              }),
              "fine");
}

TEST_F(Launch, ClustersThatADeviceMayNotHaveAreAskedFor) {
    EXPECT_EQ(run([&] {
                  const LoadedKernel kernel = jit::load(source, 1, stream(), 0);
                  const LaunchShape portable{.grid = {8, 1, 1}, .threads = 64, .shared_bytes = 512, .cluster = 8};
                  EXPECT_EQ(jit::most_clusters(kernel, portable, 1), 3);
                  EXPECT_EQ(fake.config.blockDimX, 64u);
                  EXPECT_EQ(fake.config.sharedMemBytes, 512u);
                  EXPECT_EQ(fake.attributes.at(0).value.clusterDim.x, 8u);
                  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(fake.function), 0x30u);
                  EXPECT_TRUE(fake.cluster_opt_in.empty()) << "every GPU with clusters has these";
                  LaunchShape large = portable;
                  large.grid[0] = large.cluster = 16;
                  EXPECT_EQ(jit::most_clusters(kernel, large, 1), 3);
                  EXPECT_EQ(fake.cluster_opt_in, (std::vector<std::pair<CUfunction_attribute, CUdevice>>{
                                                     {CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 101}}));
                  fake.cluster_result = CUDA_ERROR_INVALID_VALUE;
                  EXPECT_EQ(jit::most_clusters(kernel, large, 1), 0) << "an older driver";
                  fake.clusters = 0;
                  EXPECT_EQ(jit::most_clusters(kernel, portable, 1), 0) << "a partition of a GPU";
                  return std::string(::testing::Test::HasFailure() ? "failed" : "fine");
              }),
              "fine");
}

TEST_F(Launch, BadShapesNeverReachTheDriver) {
    EXPECT_EQ(run([&] {
                  const LoadedKernel kernel = jit::load(source, 0, stream(), 0);
                  const int argument = 0;
                  const auto refused = [&](const LaunchShape& shape, const char* part) {
                      EXPECT_CONTAINS(message_of([&] { jit::launch(kernel, shape, 0, stream(), &argument); }), part);
                  };
                  refused({.grid = {0, 1, 1}},
                          "launch of gdn/toy: grid: expected 1 to 2147483647 x 65535 x 65535 blocks, got 0 x 1 x 1");
                  refused({.grid = {1, 0, 1}}, "got 1 x 0 x 1");
                  refused({.grid = {1, 65536, 1}}, "got 1 x 65536 x 1");
                  refused({.grid = {1, 1, 65536}}, "got 1 x 1 x 65536");
                  refused({.grid = {0x80000000u, 1, 1}}, "got 2147483648 x 1 x 1");
                  refused({.threads = 0}, "threads: expected 1 to 1024, got 0");
                  refused({.threads = 1025}, "got 1025");
                  refused({.shared_bytes = 232449}, "shared memory: expected at most 232448 bytes, got 232449");
                  EXPECT_EQ(fake.launches, 0);
                  fake.launch_result = CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
                  refused({.grid = {3, 2, 1}, .threads = 64},
                          "launch of gdn/toy (3 x 2 x 1 blocks of 64 threads, 0 bytes shared) by cuLaunchKernelEx: made up "
                          "(CUDA error 701)");
                  return std::string(::testing::Test::HasFailure() ? "failed" : "fine");
              }),
              "fine");
}

TEST_F(Launch, AThreadNewToCudaGetsTheContext) {
    EXPECT_EQ(run([&] {
                  const LoadedKernel kernel = jit::load(source, 1, stream(), 0);
                  fake.context = nullptr;
                  fake.launch_needs_context = true;
                  const int argument = 9;
                  jit::launch(kernel, {}, 1, stream(), &argument);
                  return std::to_string(fake.launches) + " " + std::to_string(fake.argument) + " " +
                         std::to_string(reinterpret_cast<std::uintptr_t>(fake.context));
              }),
              "2 9 101");
}

TEST_F(Launch, AForkAfterUseIsCaughtAndOneBeforeIsNot) {
    EXPECT_EQ(run([&] {
                  const auto works_in_child = [&] {
                      return wait_for(start_child([&] {
                          const int argument = 0;
                          jit::launch(jit::load(source, 0, stream(), 0), {}, 0, stream(), &argument);
                          return 0;
                      }));
                  };
                  EXPECT_EQ(works_in_child(), 0);
                  const LoadedKernel kernel = jit::load(source, 0, stream(), 0);
                  const pid_t child = start_child([&] {
                      const int argument = 0;
                      const std::string launched = message_of([&] { jit::launch(kernel, {}, 0, stream(), &argument); });
                      const std::string loaded = message_of([&] { jit::load(source, 0, stream(), 0); });
                      std::string why;
                      const bool available = jit::driver_available(&why);
                      return contains(launched, "forked after its parent had used CUDA") && loaded == launched &&
                                     why == launched && !available
                                 ? 0
                                 : 1;
                  });
                  EXPECT_EQ(wait_for(child), 0);
                  const int argument = 0;
                  jit::launch(kernel, {}, 0, stream(), &argument);  // the parent goes on
                  return std::string(::testing::Test::HasFailure() ? "failed" : "fine");
              }),
              "fine");
}

TEST_F(Launch, TheWarmPathAllocatesNothingAndLoadsNothing) {
    EXPECT_EQ(run([&] {
                  const int argument = 3;
                  const auto call = [&](int scale, int device) {
                      const LoadedKernel& kernel = jit::kernel<Toy>({scale}, device, stream());
                      jit::launch(kernel, {.threads = 32, .shared_bytes = 1000, .early_start = true}, device, stream(),
                                  &argument);
                  };
                  for (int device : {0, 1})
                      for (int scale : {1, 2}) call(scale, device);
                  EXPECT_EQ(fake.loads, 2);
                  fake.capturing = CU_STREAM_CAPTURE_STATUS_ACTIVE;  // warm kernels may be captured
                  const long before = allocations;
                  for (int i = 0; i < 1000; ++i) call(1 + i % 2, i / 2 % 2);
                  EXPECT_EQ(allocations, before);
                  EXPECT_EQ(fake.loads, 2);
                  EXPECT_EQ(fake.launches, 1004);
                  EXPECT_EQ(jit::load_events().size(), 4u);
                  std::thread([&] { call(2, 1); }).join();
                  EXPECT_EQ(jit::load_events().size(), 4u) << "another thread finds what this one loaded";
                  return std::string(::testing::Test::HasFailure() ? "failed" : "fine");
              }),
              "fine");
}

TEST_F(Launch, LoadingLeavesCapturesOfOtherThreadsAlone) {
    EXPECT_EQ(run([&] {
                  fake.context = nullptr;
                  const LoadedKernel kernel = jit::load(source, 0, stream(), 100 << 10);
                  jit::most_clusters(kernel, {.threads = 32, .cluster = 16}, 0);
                  EXPECT_EQ(fake.breaking_calls, 0);
                  EXPECT_EQ(fake.capture_mode, CU_STREAM_CAPTURE_MODE_GLOBAL) << "the thread's own mode is restored";
                  fake.load_result = CUDA_ERROR_OUT_OF_MEMORY;
                  message_of([&] { jit::load(Toy::source({2}), 0, stream(), 0); });
                  EXPECT_EQ(fake.capture_mode, CU_STREAM_CAPTURE_MODE_GLOBAL) << "after an error, too";
                  return std::string(::testing::Test::HasFailure() ? "failed" : "fine");
              }),
              "fine");
}

TEST_F(Launch, ThePrimaryContextIsRetainedOnceADeviceAndReleased) {
    EXPECT_EQ(run([&] {
                  for (int device : {0, 1, 0, 1}) {
                      fake.context = nullptr;
                      const LoadedKernel kernel = jit::load(source, device, stream(), 0);
                      fake.launch_needs_context = true;
                      fake.context = nullptr;  // as in a thread that has not used CUDA yet
                      const int argument = 0;
                      jit::launch(kernel, {.threads = 32}, device, stream(), &argument);
                  }
                  EXPECT_EQ(fake.retains, 2);
                  EXPECT_EQ(fake.releases, 0);
                  jit::release_primary_contexts();
                  jit::release_primary_contexts();
                  EXPECT_EQ(fake.releases, 2);
                  return std::string(::testing::Test::HasFailure() ? "failed" : "fine");
              }),
              "fine");
}

// What a child must not wait for is held by a thread that it does not have.
TEST_F(Launch, AChildForkedWhileAKernelIsLoadedRaisesAtOnce) {
    EXPECT_EQ(run([&] {
                  std::atomic<bool> loading{false}, go_on{false};
                  static std::atomic<bool>*is_loading, *may_go_on;
                  is_loading = &loading, may_go_on = &go_on;
                  jit::Driver slow = kTable;
                  slow.library_load_data = [](CUlibrary* library, const void*, CUjit_option*, void**, unsigned,
                                              CUlibraryOption*, void**, unsigned) {
                      is_loading->store(true);
                      while (!may_go_on->load()) std::this_thread::yield();
                      return *library = reinterpret_cast<CUlibrary>(0x20), CUDA_SUCCESS;
                  };
                  jit::install_driver(&slow);
                  std::thread loader([&] { jit::kernel<Toy>({1}, 0, stream()); });
                  while (!loading.load()) std::this_thread::yield();
                  const pid_t child = start_child([&] {
                      ::alarm(20);
                      const std::string why = message_of([&] { jit::kernel<Toy>({1}, 0, stream()); });
                      return contains(why, "forked after its parent had used CUDA") && jit::load_events().empty() ? 0 : 1;
                  });
                  const int exit_code = wait_for(child);
                  go_on.store(true);
                  loader.join();
                  return std::to_string(exit_code);
              }),
              "0");
}

TEST_F(Launch, InitWithOtherPathsAfterALoadIsRefused) {
    const std::string text = run([&] {
        jit::load(source, 0, stream(), 0);
        write(folder / "other/gdn_cuda/kernels/x", "");
        jit::init(folder / "include", {});
        return message_of([&] { jit::init(folder / "other", {}); });
    });
    EXPECT_CONTAINS(text,
                    "init: expected the paths that the loaded kernels came from (headers in " + (folder / "include").string());
}

TEST(Device, TraitsComeFromTheDriver) {
    const auto result = in_child({}, [] {
        jit::install_driver(&kTable);
        const jit::DeviceTraits& traits = jit::device_traits(1);
        return traits.name + " " + traits.arch + " " + std::to_string(traits.multiprocessors) + " " +
               message_of([] { jit::device_traits(-1); }) + ", " + message_of([] { jit::device_traits(64); });
    });
    EXPECT_EQ(
        result.value,
        "Made-up GPU sm_90a 7 device: expected an ordinal below 64, got -1, device: expected an ordinal below 64, got 64");
}

TEST(Device, Names) {
    EXPECT_EQ(jit::arch_of(80), "sm_80");
    EXPECT_EQ(jit::arch_of(89), "sm_89");
    EXPECT_EQ(jit::arch_of(90), "sm_90a");
    EXPECT_EQ(jit::arch_of(100), "sm_100a");
    EXPECT_EQ(jit::arch_of(103), "sm_103a");
    EXPECT_EQ(jit::arch_of(120), "sm_120a");
    EXPECT_EQ(jit::capability_of("sm_90a"), 90);
    EXPECT_EQ(jit::capability_of("sm_120"), 120);
    for (const char* bad : {"", "sm_", "sm_9", "sm_90b", "sm_90aa", "90", "compute_90", "sm_-90", "SM_90"})
        EXPECT_CONTAINS(message_of([&] { jit::capability_of(bad); }), "arch: expected a name like sm_90a, got");
    EXPECT_EQ(jit::DeviceTraits::for_arch("sm_80").shared_bytes_per_block, 163 << 10);
    EXPECT_EQ(jit::DeviceTraits::for_arch("sm_90a").multiprocessors, 132);
    EXPECT_EQ(jit::DeviceTraits::for_arch("sm_88").name, "a device of sm_88");
}

TEST(Driver, WithoutOneItSaysWhatToDo) {
    const auto result = in_child({}, [] {
        std::string why;
        return jit::driver_available(&why) ? std::string("there is one") : why;
    });
    if (result.value == "there is one") GTEST_SKIP() << "this machine has a driver";
    EXPECT_CONTAINS(result.value, "no NVIDIA driver: ");
    EXPECT_CONTAINS(result.value, "CPU tensors and ahead-of-time compilation work without");
}

}  // namespace
}  // namespace gdn_cuda::test
