// Loading kernels with a fake driver: once for all devices, in the right context, and never under capture or after a fork.
#include <unistd.h>

#include <atomic>
#include <thread>

#include "fake_driver.hpp"
#include "jit/context.hpp"
#include "jit/driver.hpp"
#include "jit/kernel.hpp"

namespace gdn_cuda::test {
namespace {

using jit::LoadedKernel;

using Load = WithFakeDriver;

TEST_F(Load, LoadsOnceForAllDevices) {
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

TEST_F(Load, WithoutAContextThePrimaryOneIsUsed) {
    EXPECT_EQ(run([&] {
                  fake.context = nullptr;
                  fake.capture_result = CUDA_ERROR_INVALID_CONTEXT;  // must not be asked then
                  jit::load(source, 1, stream(), 0);
                  return std::to_string(fake.retains) + " " + std::to_string(reinterpret_cast<std::uintptr_t>(fake.context));
              }),
              "1 101");
}

TEST_F(Load, AColdKernelUnderCaptureIsRefusedBeforeAnythingIsLoaded) {
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

TEST_F(Load, FailedLoadsSayWhatAndMayBeRepeated) {
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
    EXPECT_CONTAINS(text, "needs 233472 bytes of shared memory per block; Made-up GPU (sm_90a) has 232448");
    EXPECT_CONTAINS(text, "device: expected an ordinal below 2, got 2\ngdn/toy");
}

TEST_F(Load, LoadingLeavesCapturesOfOtherThreadsAlone) {
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

TEST_F(Load, ThePrimaryContextIsRetainedOnceADeviceAndReleased) {
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

TEST_F(Load, AForkAfterUseIsCaughtAndOneBeforeIsNot) {
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

// A lock that a thread of the parent held is never released in the child, so the child must not wait for it.
TEST_F(Load, AChildForkedWhileAKernelIsLoadedRaisesAtOnce) {
    EXPECT_EQ(run([&] {
                  std::atomic<bool> loading{false}, go_on{false};
                  static std::atomic<bool>*is_loading, *may_go_on;
                  is_loading = &loading, may_go_on = &go_on;
                  jit::Driver slow = kFakeDriver;
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

TEST_F(Load, InitWithOtherPathsAfterALoadIsRefused) {
    const std::string text = run([&] {
        jit::load(source, 0, stream(), 0);
        write(folder / "other/gdn_cuda/kernels/x", "");
        jit::init(folder / "include", {});
        return message_of([&] { jit::init(folder / "other", {}); });
    });
    EXPECT_CONTAINS(text,
                    "init: expected the paths that the loaded kernels came from (headers in " + (folder / "include").string());
}

}  // namespace
}  // namespace gdn_cuda::test
