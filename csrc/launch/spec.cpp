#include "spec.hpp"

namespace gdn_cuda {

jit::KernelSource source_of(const KernelTraits& kernel, std::string configuration) {
    jit::KernelSource source{kernel.family,       kernel.name,         std::move(configuration), {},
                             kernel.uses_cutlass, kernel.few_registers};
    source.code = jit::include_of(source.id()) +
                  fmt::format(
                      "using namespace gdn_cuda;\n"
                      "template __global__ void gdn_cuda::{0}::{1}<{0}::{2}{4}>(const __grid_constant__ {0}::{3});\n",
                      kernel.family, kernel.name, kernel.config_type, kernel.args_type, source.configuration);
    return source;
}

void refuse_device(const KernelTraits& kernel, const jit::DeviceTraits& device) {
    throw jit::Error(fmt::format("{}/{}: expected a GPU of capability {}.{}{}, got {} ({}.{})", kernel.family, kernel.name,
                                 kernel.min_capability / 10, kernel.min_capability % 10,
                                 kernel.max_capability == kernel.min_capability ? "" : " or newer", device.name,
                                 device.capability / 10, device.capability % 10));
}

}  // namespace gdn_cuda
