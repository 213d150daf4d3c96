// The shared part of all kernel Specs. A Spec (families/<family>/<kernel>.hpp) defines
//     using Config, Args;                                    the plan's structs; Config has GDN_FIELDS
//     static constexpr const char *family, *name, *config_type, *args_type, *summary;
//     static constexpr int min_capability;                   of the device; also max_capability, for a kernel with
//                                                            architecture-specific instructions
//     static constexpr bool uses_cutlass;
//     static std::span<const Config> configurations();       all that its heuristic can choose
//     static int threads(const Config&), shared_bytes(const Config&);
//     static int cluster(const Config&, const Args&);        blocks, for a kernel that uses clusters
//     static constexpr bool starts_early;                    whether it waits for the grid before (dependent_launch.cuh)
// and gets its source, its registry entry and its launch from here.
#pragma once

#include <algorithm>
#include <gdn_cuda/kernels/common/types.cuh>
#include <limits>
#include <span>
#include <string>

#include "../jit/device.hpp"
#include "../jit/errors.hpp"
#include "../jit/kernel.hpp"
#include "../jit/text.hpp"
#include "explanation.hpp"
#include "fields.hpp"
#include "grid.hpp"

namespace gdn_cuda {

// The names are those of a Spec.
jit::KernelSource source_of(const char* family, const char* name, const char* config_type, const char* args_type,
                            std::string configuration, bool uses_cutlass);

template <class Spec>
jit::KernelSource source_of(const typename Spec::Config& config) {
    return source_of(Spec::family, Spec::name, Spec::config_type, Spec::args_type, to_text(config), Spec::uses_cutlass);
}

// sizeof(Plan<config>) for a configuration known only at run time, so that the plan alone defines the layout.
template <const auto& kConfigurations, template <auto> class Plan, std::size_t... kIndex>
int plan_bytes(const auto& config, std::index_sequence<kIndex...>) {
    static constexpr int kBytes[] = {sizeof(Plan<kConfigurations[kIndex]>)...};
    for (std::size_t i = 0; i < sizeof...(kIndex); ++i)
        if (config == kConfigurations[i]) return kBytes[i];
    return -1;
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
constexpr int max_capability_of() {
    if constexpr (requires { Spec::max_capability; }) return Spec::max_capability;
    return std::numeric_limits<int>::max();
}
template <class Spec>
constexpr bool starts_early_on(const jit::DeviceTraits& device) {
    if constexpr (requires { Spec::starts_early; }) return Spec::starts_early && device.capability >= kFirstWithDependentLaunch;
    return false;
}
template <class Spec>
constexpr bool runs_on(const jit::DeviceTraits& device) {
    return device.capability >= Spec::min_capability && device.capability <= max_capability_of<Spec>();
}

template <class Spec>
jit::LaunchShape shape_of(const typename Spec::Config& config, const typename Spec::Args& args, const Blocks& blocks) {
    jit::LaunchShape shape;
    std::ranges::copy(grid_of(Spec::family, Spec::name, blocks), shape.grid);
    shape.threads = static_cast<unsigned>(Spec::threads(config));
    shape.shared_bytes = static_cast<unsigned>(Spec::shared_bytes(config));
    if constexpr (requires { Spec::cluster(config, args); }) shape.cluster = static_cast<unsigned>(Spec::cluster(config, args));
    return shape;
}

// `why(device)` says why this configuration; it is called where the call is explained.
template <class Spec, class Why>
void launch(const typename Spec::Config& config, const typename Spec::Args& args, const Blocks& blocks, const Target& target,
            const Why& why, bool early_start = false) {
    const jit::DeviceTraits& device = jit::device_traits(target.ordinal);
    if (!runs_on<Spec>(device))
        throw jit::Error(fmt::format("{}/{}: expected a GPU of capability {}.{}{}, got {} ({}.{})", Spec::family, Spec::name,
                                     Spec::min_capability / 10, Spec::min_capability % 10,
                                     max_capability_of<Spec>() == Spec::min_capability ? "" : " or newer", device.name,
                                     device.capability / 10, device.capability % 10));
    if (target.is_explained()) [[unlikely]]
        return explain_launch(source_of<Spec>(config), shape_of<Spec>(config, args, blocks), device, why(device));
    const jit::LoadedKernel& kernel = jit::kernel<JitSpec<Spec>>(config, target.ordinal, target.stream);
    jit::LaunchShape shape = shape_of<Spec>(config, args, blocks);
    shape.early_start = early_start || starts_early_on<Spec>(device);
    jit::launch(kernel, shape, target.ordinal, target.stream, &args);
}

}  // namespace gdn_cuda
