// The warm path: a struct-keyed map from (Spec, device) to a loaded kernel. No string, no getenv, no lock, no file.
//
// A Spec is a kernel's host-side description (csrc/families):
//     using Config = ...;                       equality-comparable, trivially copyable
//     static KernelSource source(const Config&);
//     static int shared_bytes(const Config&);
#pragma once

#include <deque>
#include <vector>

#include "fork.hpp"
#include "runtime.hpp"

namespace gdn_cuda::jit {

template <class Spec>
struct KernelsOf {
    struct Slot {
        typename Spec::Config config;
        int ordinal;
        const LoadedKernel* kernel;
    };
    std::vector<Slot> slots;
    std::deque<LoadedKernel> kernels;  // stable addresses; never freed, as the driver outlives us

    static inline Guarded<KernelsOf> shared;  // by all threads; serializes compiles of this Spec only
};

template <class Spec>
const LoadedKernel& kernel(const typename Spec::Config& config, int ordinal, CUstream stream) {
    using Slot = typename KernelsOf<Spec>::Slot;
    thread_local std::vector<Slot> warm;  // few entries: a linear scan beats hashing
    for (const Slot& slot : warm)
        if (slot.ordinal == ordinal && slot.config == config) return *slot.kernel;

    const auto all = KernelsOf<Spec>::shared.lock();
    for (const Slot& slot : all->slots)
        if (slot.ordinal == ordinal && slot.config == config) {
            warm.push_back(slot);
            return *slot.kernel;
        }
    all->kernels.push_back(load(Spec::source(config), ordinal, stream, Spec::shared_bytes(config)));
    all->slots.push_back({config, ordinal, &all->kernels.back()});
    warm.push_back(all->slots.back());
    return all->kernels.back();
}

}  // namespace gdn_cuda::jit
