// The shared part of all kernel Specs. A Spec (families/<family>/<kernel>.hpp) begins with a GDN_KERNEL, and defines
//     static std::span<const Config> configurations();       all that its heuristic can choose; a Config has GDN_FIELDS
//     static int threads(const Config&), shared_bytes(const Config&);
//     static int cluster(const Config&, const Args&);        blocks, for a kernel that uses clusters
// and gets its source, its place in the registry and its launch from here.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/common/types.cuh>
#include <span>
#include <string>

#include "../jit/device.hpp"
#include "../jit/errors.hpp"
#include "../jit/kernel.hpp"
#include "../jit/text.hpp"
#include "explanation.hpp"
#include "fields.hpp"
#include "grid.hpp"
#include "registry.hpp"

namespace gdn_cuda {

// In a Spec: what is constant for its kernel, and its place in the registry, which holds every Spec whose header the program
// includes. Config and Args are structs of the family's plan; what else a KernelTraits has may follow the summary,
//
//     struct ComputeO {
//         GDN_KERNEL(ComputeO, gdn, compute_o, ComputeOConfig, ChunkArgs, "outputs of every chunk", .uses_cutlass = true);
#define GDN_KERNEL(Spec, family_, name_, Config_, Args_, ...)                                    \
    using Config = Config_;                                                                      \
    using Args = Args_;                                                                          \
    static constexpr ::gdn_cuda::KernelTraits kernel =                                           \
        ::gdn_cuda::kernel_traits(#family_, #name_, #Config_, #Args_, {.summary = __VA_ARGS__}); \
    inline static const ::gdn_cuda::Registration<Spec> registration

jit::KernelSource source_of(const KernelTraits& kernel, std::string configuration);

template <class Spec>
jit::KernelSource source_of(const typename Spec::Config& config) {
    return source_of(Spec::kernel, to_text(config));
}

// sizeof(Plan<config>) for a configuration known only at run time, so that the plan alone defines the layout.
template <const auto& kConfigurations, template <auto> class Plan>
int plan_bytes(const auto& config) {
    static constexpr auto kBytes = []<std::size_t... kIndex>(std::index_sequence<kIndex...>) {
        return std::array<int, sizeof...(kIndex)>{sizeof(Plan<kConfigurations[kIndex]>)...};
    }(std::make_index_sequence<kConfigurations.size()>());
    const auto found = std::ranges::find(kConfigurations, config);
    return found == kConfigurations.end() ? -1 : kBytes[static_cast<std::size_t>(found - kConfigurations.begin())];
}

// A Spec as jit::kernel sees it.
template <class Spec>
struct JitSpec {
    using Config = typename Spec::Config;
    static jit::KernelSource source(const Config& config) { return source_of<Spec>(config); }
    static int shared_bytes(const Config& config) { return Spec::shared_bytes(config); }
};

// The device and stream of a call.
struct Target {
    int ordinal;
    CUstream stream;

    bool is_explained() const { return ordinal == jit::kStandIn; }
};

template <class Spec>
struct Registration : RegisteredSpec {
    Registration()
        : RegisteredSpec{.kernel = Spec::kernel,
                         .configurations =
                             [] {
                                 const std::span<const typename Spec::Config> all = Spec::configurations();
                                 return ConfigurationList{all.data(), all.size(), sizeof(typename Spec::Config)};
                             },
                         .describe =
                             [](const void* config) {
                                 const auto& chosen = *static_cast<const typename Spec::Config*>(config);
                                 return RegisteredConfiguration{source_of<Spec>(chosen), Spec::threads(chosen),
                                                                Spec::shared_bytes(chosen), config, &load};
                             }} {
        add_to_registry(*this);
    }
    static void load(const void* config, int ordinal) {
        jit::kernel<JitSpec<Spec>>(*static_cast<const typename Spec::Config*>(config), ordinal, nullptr);
    }
};

constexpr bool runs_on(const KernelTraits& kernel, const jit::DeviceTraits& device) {
    return device.capability >= kernel.min_capability && device.capability <= kernel.max_capability;
}

template <class Spec>
jit::LaunchShape shape_of(const typename Spec::Config& config, const typename Spec::Args& args, const Blocks& blocks) {
    jit::LaunchShape shape;
    std::ranges::copy(grid_of(Spec::kernel.family, Spec::kernel.name, blocks), shape.grid);
    shape.threads = static_cast<unsigned>(Spec::threads(config));
    shape.shared_bytes = static_cast<unsigned>(Spec::shared_bytes(config));
    if constexpr (requires { Spec::cluster(config, args); }) shape.cluster = static_cast<unsigned>(Spec::cluster(config, args));
    return shape;
}

[[noreturn]] void refuse_device(const KernelTraits& kernel, const jit::DeviceTraits& device);

// `why(device)` says why this configuration; it is called where the call is explained.
template <class Spec, class Why>
void launch(const typename Spec::Config& config, const typename Spec::Args& args, const Blocks& blocks, const Target& target,
            const Why& why, bool early_start = false) {
    const jit::DeviceTraits& device = jit::device_traits(target.ordinal);
    if (!runs_on(Spec::kernel, device)) refuse_device(Spec::kernel, device);
    if (target.is_explained()) [[unlikely]]
        return explain_launch(source_of<Spec>(config), shape_of<Spec>(config, args, blocks), device, why(device));
    const jit::LoadedKernel& kernel = jit::kernel<JitSpec<Spec>>(config, target.ordinal, target.stream);
    jit::LaunchShape shape = shape_of<Spec>(config, args, blocks);
    shape.early_start = early_start || (Spec::kernel.starts_early && device.capability >= kFirstWithDependentLaunch);
    jit::launch(kernel, shape, target.ordinal, target.stream, &args);
}

// Before launches that will be followed, much later, by one of this kernel.
template <class Spec>
void prefetch(const typename Spec::Config& config, const Target& target) {
    if (!target.is_explained() && runs_on(Spec::kernel, jit::device_traits(target.ordinal)))
        jit::prefetch<JitSpec<Spec>>(config, target.ordinal);
}

}  // namespace gdn_cuda
