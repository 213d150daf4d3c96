// The warm path: a struct-keyed map from (Spec, device) to a loaded kernel. No string, no getenv, no lock, no file.
//
// A Spec is a kernel's host-side description (csrc/jit_kernels/impls):
//     using Config = ...;                       equality-comparable, trivially copyable
//     static KernelSource source(const Config&);
//     static int shared_bytes(const Config&);
#pragma once

#include <deque>
#include <mutex>
#include <vector>

#include "runtime.hpp"

namespace gdn_cuda::jit {

template <class Spec>
const LoadedKernel& kernel(const typename Spec::Config& config, int ordinal, CUstream stream) {
    struct Slot {
        typename Spec::Config config;
        int ordinal;
        const LoadedKernel* kernel;
    };
    thread_local std::vector<Slot> warm;  // a handful of entries: a linear scan beats hashing
    for (const Slot& slot : warm)
        if (slot.ordinal == ordinal && slot.config == config) return *slot.kernel;

    static std::mutex mutex;
    static std::deque<Slot> all;              // shared by the threads
    static std::deque<LoadedKernel> kernels;  // stable addresses, never freed: the driver outlives us
    std::lock_guard lock(mutex);              // compiles of one Spec are serial; other Specs go on
    for (const Slot& slot : all)
        if (slot.ordinal == ordinal && slot.config == config) {
            warm.push_back(slot);
            return *slot.kernel;
        }
    kernels.push_back(load(Spec::source(config), ordinal, stream, Spec::shared_bytes(config)));
    all.push_back({config, ordinal, &kernels.back()});
    warm.push_back(all.back());
    return kernels.back();
}

}  // namespace gdn_cuda::jit
