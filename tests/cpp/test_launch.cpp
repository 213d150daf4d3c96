// Launching with a fake driver: which arguments are packed, what is refused, and what the warm path costs.
#include <atomic>
#include <cstdlib>
#include <new>
#include <thread>

#include "fake_driver.hpp"
#include "jit/kernel.hpp"

namespace {
std::atomic<long> allocations{0};
}

// Counts the allocations of the warm path. Not inlined, because g++ would warn that free() does not match new.
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

using jit::LaunchShape;
using jit::LoadedKernel;

using Launch = WithFakeDriver;

TEST_F(Launch, ArgumentsAndShapeReachTheDriver) {
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
                  const std::string first = std::to_string(fake.launches);
                  fake.context = nullptr;  // taken away: the launch fails, and is made again
                  jit::launch(kernel, {}, 1, stream(), &argument);
                  return first + " " + std::to_string(fake.launches) + " " + std::to_string(fake.argument) + " " +
                         std::to_string(reinterpret_cast<std::uintptr_t>(fake.context));
              }),
              "1 3 9 101");
}

TEST_F(Launch, WordsAreClearedInTheStream) {
    EXPECT_EQ(run([&] {
                  int words[3];
                  fake.context = nullptr;
                  fake.launch_needs_context = true;
                  jit::clear_words(words, 3, 1, stream());
                  EXPECT_EQ(fake.cleared, std::tuple(reinterpret_cast<CUdeviceptr>(words), 0u, 3ul, stream()));
                  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(fake.context), 101u);
                  jit::clear_words(words, 0, 1, stream());
                  jit::clear_words(words, 3, jit::kStandIn, stream());
                  EXPECT_EQ(fake.launches, 1) << "of no words, and where a call is explained";
                  fake.launch_result = CUDA_ERROR_INVALID_VALUE;
                  return message_of([&] { jit::clear_words(words, 3, 1, stream()); });
              }),
              "cuMemsetD32Async: made up (CUDA error 1)");
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

}  // namespace
}  // namespace gdn_cuda::test
