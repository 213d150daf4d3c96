// Functions of the public C++ API that belong to no family.
#include <gdn_cuda/api.hpp>
#include <stdexcept>

#include "jit/device.hpp"
#include "jit/no_compile.hpp"
#include "jit/toolchain.hpp"
#include "launch/registry.hpp"

namespace gdn_cuda {
void init(const std::filesystem::path& library_root, const std::filesystem::path& cuda_home) {
    jit::init(library_root, cuda_home);
}

int warmup(const std::string& kernel, int device) {
    int loaded = 0;
    const int capability = jit::device_traits(device).capability;
    for (const RegisteredKernel& each : registry()) {
        const bool runs = each.min_capability <= capability && capability <= each.max_capability;
        if (kernel.empty() ? !runs : kernel != each.family + "/" + each.name) continue;
        for (const RegisteredConfiguration& configuration : each.configurations) {
            configuration.load(device);
            ++loaded;
        }
    }
    if (loaded == 0)
        throw std::invalid_argument("warmup: kernel: expected \"family/kernel\" of the registry, got \"" + kernel + "\"");
    return loaded;
}

NoCompile::NoCompile() {
    jit::enter_no_compile();
}

NoCompile::~NoCompile() {
    jit::leave_no_compile();
}

}  // namespace gdn_cuda
