// The device properties that heuristics may use.
#pragma once

#include <string>
#include <vector>

namespace gdn_cuda::jit {

struct DeviceTraits {
    int ordinal = 0;
    int capability = 90;  // 10 * major + minor
    int multiprocessors = 132;
    int l2_bytes = 60 << 20;
    int shared_bytes_per_block = 227 << 10;  // with opt-in
    std::int64_t memory_bytes = std::int64_t{141} << 30;
    std::string name = "NVIDIA H200";
    std::string arch = "sm_90a";  // what kernels are compiled for

    static DeviceTraits for_arch(const std::string& arch);  // typical traits, to compile ahead of time without a GPU
};

std::vector<DeviceTraits> typical_devices();  // devices known by name; for_arch gives the last one of an arch

constexpr int kMostDevices = 64;

// The ordinal of the stand-in device of explained calls (csrc/launch/explanation.hpp); no real device has it.
constexpr int kStandIn = -1;

// While it lives, device_traits(kStandIn) returns `traits` in this thread.
class StandIn {
  public:
    explicit StandIn(const DeviceTraits& traits);
    ~StandIn();
    StandIn(const StandIn&) = delete;
    StandIn& operator=(const StandIn&) = delete;

  private:
    DeviceTraits traits_;
    const DeviceTraits* outer_;
};

const DeviceTraits& device_traits(int ordinal);  // read through the driver once per device; lock-free when warm
std::string arch_of(int capability);             // 90 -> "sm_90a", 89 -> "sm_89"
int capability_of(const std::string& arch);      // "sm_90a" -> 90; throws if it is no arch

}  // namespace gdn_cuda::jit
