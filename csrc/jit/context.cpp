#include "context.hpp"

#include <array>
#include <atomic>
#include <cstdlib>
#include <utility>

#include "device.hpp"
#include "errors.hpp"
#include "text.hpp"

namespace gdn_cuda::jit {
namespace {

std::array<std::atomic<CUcontext>, kMostDevices> retained{};
std::atomic_flag released_at_exit = ATOMIC_FLAG_INIT;

CUdevice device_of(const Driver& cuda, int ordinal) {
    CUdevice device = 0;
    check(cuda.device_get(&device, ordinal), "cuDeviceGet");
    return device;
}

}  // namespace

bool have_context(const Driver& cuda) {
    CUcontext current = nullptr;
    check(cuda.ctx_get_current(&current), "cuCtxGetCurrent");
    return current != nullptr;
}

CUcontext primary_context(const Driver& cuda, int ordinal) {
    if (ordinal < 0 || ordinal >= kMostDevices)
        throw Error(fmt::format("device: expected an ordinal below {}, got {}", kMostDevices, ordinal));
    std::atomic<CUcontext>& kept = retained[static_cast<std::size_t>(ordinal)];
    if (CUcontext context = kept.load()) return context;
    if (!released_at_exit.test_and_set()) std::atexit(release_primary_contexts);
    const CUdevice device = device_of(cuda, ordinal);
    const RelaxedCapture relaxed(cuda);  // the first retain creates the context
    CUcontext context = nullptr, first = nullptr;
    check(cuda.primary_ctx_retain(&context, device), "cuDevicePrimaryCtxRetain");
    if (kept.compare_exchange_strong(first, context)) return context;
    cuda.primary_ctx_release(device);
    return first;
}

void use_primary_context(const Driver& cuda, int ordinal) {
    check(cuda.ctx_set_current(primary_context(cuda, ordinal)), "cuCtxSetCurrent");
}

bool is_first_call_of_thread() {
    static thread_local bool is_first = true;
    return std::exchange(is_first, false);
}

void release_primary_contexts() {
    if (!driver_available()) return;  // in a forked child: the contexts belong to the parent
    const Driver& cuda = driver();
    for (std::size_t ordinal = 0; ordinal < retained.size(); ++ordinal) {
        CUdevice device = 0;
        if (retained[ordinal].exchange(nullptr) == nullptr) continue;
        // The driver may have shut down before us; then there is nothing to release.
        if (cuda.device_get(&device, static_cast<int>(ordinal)) == CUDA_SUCCESS) cuda.primary_ctx_release(device);
    }
}

RelaxedCapture::RelaxedCapture(const Driver& cuda) : cuda_(cuda) {
    check(cuda.exchange_capture_mode(&mode_), "cuThreadExchangeStreamCaptureMode");
}

RelaxedCapture::~RelaxedCapture() {
    cuda_.exchange_capture_mode(&mode_);
}

}  // namespace gdn_cuda::jit
