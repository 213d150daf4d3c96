// Answers what the operators' host code asks of a GPU. CPU tensors have the device index -1, which is jit::kStandIn.
#include "operators.hpp"

#include <dlfcn.h>

#include <cstring>
#include <optional>

#include "jit/env.hpp"
#include "jit/runtime.hpp"

extern "C" AOTITorchError emulator_device_type(AtenTensorHandle, int32_t* type) {
    *type = aoti_torch_device_type_cuda();
    return AOTI_TORCH_SUCCESS;
}

extern "C" void* emulator_dlsym(void*, const char*) noexcept {
    const auto current_stream = [](int32_t, void** stream) -> AOTITorchError {
        *stream = nullptr;
        return AOTI_TORCH_SUCCESS;
    };
    return reinterpret_cast<void*>(+current_stream);
}

// Variables are read at every call, so that a test can set them.
const gdn_cuda::jit::Env& gdn_cuda::jit::env() {
    static Env now;
    return now = parse_env();
}

void gdn_cuda::jit::clear_words(void* words, std::size_t count, int, CUstream) {
    std::memset(words, 0, count * sizeof(unsigned));
}

namespace gdn_cuda {

bool explaining() {
    return false;
}
void remark(std::string) {}

}  // namespace gdn_cuda

// Sets the device that heuristics choose for.
extern "C" __attribute__((visibility("default"))) void emulator_device(int capability, int multiprocessors, int shared_bytes) {
    static std::optional<gdn_cuda::jit::StandIn> device;
    gdn_cuda::jit::DeviceTraits traits;
    traits.capability = capability;
    traits.multiprocessors = multiprocessors;
    traits.shared_bytes_per_block = shared_bytes;
    device.reset();
    device.emplace(traits);
}
