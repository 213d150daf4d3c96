// Included before the operators' host code, which compiles unchanged: its launches run in the emulator, its operators are
// registered as torch.ops.gdn_emulated.<name>, and their CUDA implementations take CPU tensors.
#pragma once

// operators.cpp defines these replacements.
#define aoti_torch_get_device_type emulator_device_type  // says CUDA for every tensor
#define dlsym emulator_dlsym  // finds the current stream, the one symbol looked up in libtorch_cuda.so
#define launch launch_on_gpu  // the one of spec.hpp, never called

#include "launch/spec.hpp"
#undef launch
#include "launch.hpp"
#include "operators/operator.hpp"

#undef STABLE_TORCH_LIBRARY_FRAGMENT
#define STABLE_TORCH_LIBRARY_FRAGMENT(ns, m) _STABLE_TORCH_LIBRARY_FRAGMENT(gdn_emulated, m, C10_UID)
#undef STABLE_TORCH_LIBRARY_IMPL
#define STABLE_TORCH_LIBRARY_IMPL(ns, key, m) _STABLE_TORCH_LIBRARY_IMPL(gdn_emulated, key, m, C10_UID)

namespace gdn_cuda {

template <class Spec, class Why>
void launch(const typename Spec::Config& config, const typename Spec::Args& args, const Blocks& blocks, const Target&,
            const Why&, bool = false) {
    const jit::LaunchShape shape = shape_of<Spec>(config, args, blocks);
    emulator::launch(source_of<Spec>(config).id(), to_text(config),
                     {{shape.grid[0], shape.grid[1], shape.grid[2]}, shape.threads, shape.shared_bytes, shape.cluster}, &args);
}

}  // namespace gdn_cuda
