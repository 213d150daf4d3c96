// Included in front of the operators' host code: it compiles as it is, but its launches run in the emulator, and its operators
// are registered as torch.ops.gdn_emulated.<name>. What they have for CUDA tensors takes CPU tensors here.
#pragma once

// What these names are in the headers below, operators.cpp defines.
#define aoti_torch_get_device_type emulator_device_type  // every tensor is on CUDA, on the device that stands for one,
#define dlsym emulator_dlsym                             // and what is looked up in libtorch_cuda.so is the current stream
#define launch launch_on_gpu                             // of spec.hpp, and never called

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
