#include "device.hpp"

#include <array>
#include <atomic>
#include <charconv>
#include <utility>

#include "driver.hpp"
#include "errors.hpp"
#include "fork.hpp"
#include "text.hpp"

namespace gdn_cuda::jit {
namespace {

struct Typical {
    int capability, multiprocessors, l2_megabytes, shared_kilobytes, memory_gigabytes;
    const char* name;
};
constexpr Typical kTypical[] = {
    {80, 108, 40, 163, 80, "NVIDIA A100"},
    {86, 84, 6, 99, 48, "NVIDIA A40"},
    {87, 16, 4, 163, 64, "NVIDIA Orin"},
    {89, 142, 96, 99, 48, "NVIDIA L40S"},
    {90, 132, 50, 227, 80, "NVIDIA H100"},
    {90, 132, 60, 227, 141, "NVIDIA H200"},
    {100, 148, 126, 227, 180, "NVIDIA B200"},
    {103, 148, 126, 227, 268, "NVIDIA B300"},
    {120, 188, 128, 99, 96, "NVIDIA RTX PRO 6000"},
    {121, 48, 24, 99, 128, "NVIDIA GB10"},
};

DeviceTraits traits_of(const Typical& typical) {
    DeviceTraits traits;
    traits.capability = typical.capability;
    traits.multiprocessors = typical.multiprocessors;
    traits.l2_bytes = typical.l2_megabytes << 20;
    traits.shared_bytes_per_block = typical.shared_kilobytes << 10;
    traits.memory_bytes = std::int64_t{typical.memory_gigabytes} << 30;
    traits.name = typical.name;
    traits.arch = arch_of(typical.capability);
    return traits;
}

DeviceTraits read_traits(int ordinal) {
    const Driver& cuda = driver();
    int count = 0;
    check(cuda.device_count(&count), "cuDeviceGetCount");
    if (ordinal < 0 || ordinal >= count)
        throw Error(fmt::format("device: expected an ordinal below {}, got {}", count, ordinal));
    CUdevice device = 0;
    check(cuda.device_get(&device, ordinal), "cuDeviceGet");
    const auto attribute = [&](CUdevice_attribute which) {
        int value = 0;
        check(cuda.device_attribute(&value, which, device), "cuDeviceGetAttribute");
        return value;
    };
    DeviceTraits traits;
    traits.ordinal = ordinal;
    traits.capability =
        10 * attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) + attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    traits.multiprocessors = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    traits.l2_bytes = attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
    traits.shared_bytes_per_block = attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
    std::size_t memory = 0;
    check(cuda.device_memory(&memory, device), "cuDeviceTotalMem");
    traits.memory_bytes = static_cast<std::int64_t>(memory);
    std::array<char, 256> name{};
    check(cuda.device_name(name.data(), static_cast<int>(name.size()) - 1, device), "cuDeviceGetName");
    traits.name = name.data();
    traits.arch = arch_of(traits.capability);
    return traits;
}

thread_local const DeviceTraits* stand_in = nullptr;

}  // namespace

StandIn::StandIn(const DeviceTraits& traits) : traits_(traits), outer_(std::exchange(stand_in, &traits_)) {}
StandIn::~StandIn() {
    stand_in = outer_;
}

const DeviceTraits& device_traits(int ordinal) {
    static std::array<std::atomic<const DeviceTraits*>, kMostDevices> known{};
    if (ordinal < 0 || ordinal >= kMostDevices) [[unlikely]] {
        if (ordinal == kStandIn && stand_in != nullptr) return *stand_in;
        throw Error(fmt::format("device: expected an ordinal below {}, got {}", kMostDevices, ordinal));
    }
    std::atomic<const DeviceTraits*>& slot = known[static_cast<std::size_t>(ordinal)];
    return made_once(slot, [ordinal] { return read_traits(ordinal); });
}

std::string arch_of(int capability) {
    // Architecture-specific instructions (wgmma, tcgen05) exist only in the "a" variants.
    const bool specific = capability == 90 || capability == 100 || capability == 103 || capability == 120;
    return fmt::format("sm_{}{}", capability, specific ? "a" : "");
}

int capability_of(const std::string& arch) {
    int capability = 0;
    const char* const end = arch.data() + arch.size();
    if (arch.starts_with("sm_")) {
        const auto [rest, error] = std::from_chars(arch.data() + 3, end, capability);
        const bool suffix = rest == end || (rest + 1 == end && (*rest == 'a' || *rest == 'f'));
        if (error == std::errc{} && suffix && capability >= 10) return capability;
    }
    throw Error(fmt::format("arch: expected a name like sm_90a, got \"{}\"", arch));
}

std::vector<DeviceTraits> typical_devices() {
    std::vector<DeviceTraits> all;
    for (const Typical& typical : kTypical) all.push_back(traits_of(typical));
    return all;
}

DeviceTraits DeviceTraits::for_arch(const std::string& arch) {
    const int capability = capability_of(arch);
    const Typical* nearest = kTypical;
    for (const Typical& typical : kTypical)
        if (typical.capability <= capability) nearest = &typical;
    DeviceTraits traits = traits_of(*nearest);
    if (nearest->capability != capability) traits.name = fmt::format("a device of {}", arch);
    traits.capability = capability;
    traits.arch = arch;
    return traits;
}

}  // namespace gdn_cuda::jit
