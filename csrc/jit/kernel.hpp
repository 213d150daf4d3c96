// The warm path: a struct-keyed map from (Spec, device) to a loaded kernel. No string, no getenv, no lock, no file.
//
// A Spec is a kernel's host-side description (csrc/families):
//     using Config = ...;                       equality-comparable, trivially copyable
//     static KernelSource source(const Config&);
//     static int shared_bytes(const Config&);
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "fork.hpp"
#include "prefetch.hpp"
#include "runtime.hpp"

namespace gdn_cuda::jit {

// The kernels of one Spec that any thread has loaded. This is the cold path: the same code for all Specs.
class LoadedKernels {
  public:
    const LoadedKernel& get(const KernelSource& source, int ordinal, CUstream stream, int shared_bytes);

  private:
    // By device and configuration. Addresses are stable; never freed, as the driver outlives us.
    std::map<std::pair<int, std::string>, LoadedKernel> kernels_;
};

template <class Spec>
inline Guarded<LoadedKernels> loaded_kernels;  // serializes compiles of this Spec only

template <class Spec>
const LoadedKernel& kernel(const typename Spec::Config& config, int ordinal, CUstream stream) {
    struct Slot {
        typename Spec::Config config;
        int ordinal;
        const LoadedKernel* kernel;
    };
    thread_local std::vector<Slot> warm;  // few entries: a linear scan beats hashing
    for (const Slot& slot : warm)
        if (slot.ordinal == ordinal && slot.config == config) return *slot.kernel;
    const LoadedKernel& found =
        loaded_kernels<Spec>.lock()->get(Spec::source(config), ordinal, stream, Spec::shared_bytes(config));
    warm.push_back({config, ordinal, &found});
    return found;
}

// Begins to compile a kernel that this process will launch later; as cheap as a warm kernel() from the second time on.
template <class Spec>
void prefetch(const typename Spec::Config& config, int ordinal) {
    thread_local std::vector<std::pair<typename Spec::Config, int>> begun;
    if (std::ranges::find(begun, std::pair(config, ordinal)) != begun.end()) return;
    prefetch(Spec::source(config), device_traits(ordinal).arch);
    begun.emplace_back(config, ordinal);
}

}  // namespace gdn_cuda::jit
