// What the operators' host code asks of the library around it. Calls are explained ones to it, which need no device and no
// stream; but their tensors have memory.
#include "operators.hpp"

#include <optional>

namespace gdn_cuda {

bool explaining() {
    return true;
}
void remark(std::string) {}

}  // namespace gdn_cuda

// From now on heuristics choose for a Hopper GPU with so many multiprocessors.
extern "C" __attribute__((visibility("default"))) void emulator_device(int multiprocessors) {
    static std::optional<gdn_cuda::jit::StandIn> device;
    gdn_cuda::jit::DeviceTraits traits;
    traits.multiprocessors = multiprocessors;
    device.reset();
    device.emplace(traits);
}
