#include "registry.hpp"

#include <algorithm>
#include <atomic>
#include <string_view>
#include <tuple>

#include "../jit/fork.hpp"

namespace gdn_cuda {
namespace {

// Initialized at compile time, so before any Spec adds itself.
constinit const RegisteredSpec* last_added = nullptr;

RegisteredKernel described(const RegisteredSpec& spec) {
    const KernelTraits& kernel = spec.kernel;
    RegisteredKernel entry{kernel.family,       kernel.name, kernel.summary, kernel.min_capability, kernel.max_capability,
                           kernel.uses_cutlass, {}};
    const ConfigurationList all = spec.configurations();
    for (std::size_t i = 0; i < all.count; ++i)
        entry.configurations.push_back(spec.describe(static_cast<const std::byte*>(all.first) + i * all.bytes_of_one));
    return entry;
}

}  // namespace

void add_to_registry(RegisteredSpec& spec) {
    spec.next = last_added;
    last_added = &spec;
}

const std::vector<RegisteredKernel>& registry() {
    static constinit std::atomic<const std::vector<RegisteredKernel>*> all{nullptr};
    return jit::made_once(all, [] {
        std::vector<RegisteredKernel> kernels;
        for (const RegisteredSpec* spec = last_added; spec != nullptr; spec = spec->next) kernels.push_back(described(*spec));
        std::ranges::sort(kernels, {}, [](const RegisteredKernel& kernel) { return std::tie(kernel.family, kernel.name); });
        return kernels;
    });
}

}  // namespace gdn_cuda
