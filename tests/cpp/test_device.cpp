// Devices by their names and traits, and a machine with no driver.
#include "fake_driver.hpp"
#include "jit/device.hpp"
#include "jit/driver.hpp"

namespace gdn_cuda::test {
namespace {

TEST(Device, TraitsComeFromTheDriver) {
    const auto result = in_child({}, [] {
        jit::install_driver(&kFakeDriver);
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
    EXPECT_CONTAINS(result.value, "CPU tensors and ahead-of-time compilation work without one");
}

}  // namespace
}  // namespace gdn_cuda::test
