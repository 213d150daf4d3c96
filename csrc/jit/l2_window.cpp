#include "l2_window.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "context.hpp"
#include "driver.hpp"
#include "errors.hpp"
#include "fork.hpp"
#include "log.hpp"
#include "text.hpp"

namespace gdn_cuda::jit {
namespace {

// The L2 set-aside belongs to the device, windows to streams; so windows are counted per device.
struct SetAside {
    std::size_t bytes = 0, before = 0;
    int windows = 0;
};
struct Windows {
    std::set<std::pair<int, CUstream>> streams;
    std::map<int, SetAside> devices;
};
Guarded<Windows> windows;

// Makes the device's primary context, which torch uses too, current for its lifetime.
class PrimaryContext {
  public:
    explicit PrimaryContext(int ordinal) {
        CUcontext primary = primary_context(cuda_, ordinal);
        check(cuda_.ctx_get_current(&before_), "cuCtxGetCurrent");
        if (before_ != primary) check(cuda_.ctx_set_current(primary), "cuCtxSetCurrent");
    }
    ~PrimaryContext() { cuda_.ctx_set_current(before_); }
    PrimaryContext(const PrimaryContext&) = delete;
    PrimaryContext& operator=(const PrimaryContext&) = delete;

  private:
    const Driver& cuda_ = driver();
    const RelaxedCapture relaxed_{cuda_};
    CUcontext before_ = nullptr;
};

std::size_t attribute(int ordinal, CUdevice_attribute which) {
    CUdevice device = 0;
    int value = 0;
    check(driver().device_get(&device, ordinal), "cuDeviceGet");
    check(driver().device_attribute(&value, which, device), "cuDeviceGetAttribute");
    return static_cast<std::size_t>(std::max(value, 0));
}

void set_aside(std::size_t bytes) {
    check(driver().ctx_set_limit(CU_LIMIT_PERSISTING_L2_CACHE_SIZE, bytes), "cuCtxSetLimit(persisting L2)");
}

}  // namespace

std::size_t most_l2_window_bytes(int ordinal) {
    return std::min(attribute(ordinal, CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE),
                    attribute(ordinal, CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE));
}

L2Window::L2Window(int ordinal, CUstream stream, const void* base, std::size_t bytes)
    : ordinal_(ordinal), stream_(stream), bytes_(bytes) {
    const Driver& cuda = driver();
    const std::size_t most = most_l2_window_bytes(ordinal);
    if (bytes == 0 || bytes > most)
        throw Error(
            fmt::format("a window in L2: expected 1 to {} bytes, which device {} can set aside, got {}", most, ordinal, bytes));
    const PrimaryContext context(ordinal);
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    const CUresult asked = cuda.stream_is_capturing(stream, &status);
    if (asked == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT || status != CU_STREAM_CAPTURE_STATUS_NONE)
        throw Error(
            "a window in L2: expected a stream that is not under CUDA graph capture, got one that is; open the window before "
            "capturing");
    check(asked, "cuStreamIsCapturing");

    const auto all = windows.lock();
    if (all->streams.contains({ordinal, stream}))
        throw Error("a window in L2: expected a stream that has no window, got one whose window has not been released");
    check(cuda.stream_get_attribute(stream, CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW, &before_),
          "cuStreamGetAttribute(access policy window)");
    SetAside& room = all->devices[ordinal];
    if (room.windows == 0)
        check(cuda.ctx_get_limit(&room.before, CU_LIMIT_PERSISTING_L2_CACHE_SIZE), "cuCtxGetLimit(persisting L2)");
    set_aside(std::max(room.before, std::min(room.bytes + bytes, most)));

    CUstreamAttrValue wanted{};
    wanted.accessPolicyWindow.base_ptr = const_cast<void*>(base);
    wanted.accessPolicyWindow.num_bytes = bytes;
    wanted.accessPolicyWindow.hitRatio = 1.0F;
    wanted.accessPolicyWindow.hitProp = CU_ACCESS_PROPERTY_PERSISTING;
    wanted.accessPolicyWindow.missProp = CU_ACCESS_PROPERTY_STREAMING;
    if (const CUresult result = cuda.stream_set_attribute(stream, CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW, &wanted);
        result != CUDA_SUCCESS) {
        set_aside(std::max(room.before, std::min(room.bytes, most)));
        check(result, "cuStreamSetAttribute(access policy window)");
    }
    room.bytes += bytes;
    ++room.windows;
    all->streams.insert({ordinal, stream});
    held_ = true;
}

void L2Window::release() {
    if (!held_) return;
    const Driver& cuda = driver();
    const PrimaryContext context(ordinal_);
    const auto all = windows.lock();
    held_ = false;
    all->streams.erase({ordinal_, stream_});
    SetAside& room = all->devices[ordinal_];
    room.bytes -= bytes_;
    --room.windows;
    check(cuda.stream_set_attribute(stream_, CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW, &before_),
          "cuStreamSetAttribute(access policy window)");
    if (room.windows > 0) return;
    // Otherwise lines stay persisting after their window, in memory that may by then belong to another tensor.
    check(cuda.ctx_reset_persisting_l2(), "cuCtxResetPersistingL2Cache");
    set_aside(room.before);
}

L2Window::~L2Window() {
    try {
        release();
    } catch (const std::exception& error) {
        log(Level::warning, fmt::format("releasing a window in L2: {}", error.what()));
    }
}

}  // namespace gdn_cuda::jit
