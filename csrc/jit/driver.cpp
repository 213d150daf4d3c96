#include "driver.hpp"

#include <dlfcn.h>

#include <atomic>

#include "errors.hpp"
#include "fork.hpp"
#include "text.hpp"

namespace gdn_cuda::jit {
namespace {

std::atomic<const Driver*> installed{nullptr};
std::atomic<bool> used{false}, forked{false};

// What driver() returns when nothing prevents it, else nullptr: one load on the warm path.
std::atomic<const Driver*> ready{nullptr};

const InForkedChild refuse_driver([] {
    if (!used.load()) return;
    forked.store(true);
    ready.store(nullptr);
});

template <class Function>
void bind(void* handle, Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(::dlsym(handle, name));
    if (function == nullptr)
        throw Error(
            fmt::format("libcuda.so.1: expected an NVIDIA driver for CUDA 12.0 or newer (525+), got one without {}", name));
}

Driver open_driver() {
    void* handle = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr)
        throw Error(
            fmt::format("no NVIDIA driver: {}; install one (or, in a container, start it with the GPUs: --gpus all). "
                        "CPU tensors and ahead-of-time compilation work without one",
                        ::dlerror()));
    Driver table{};
    bind(handle, table.init, "cuInit");
    bind(handle, table.driver_version, "cuDriverGetVersion");
    bind(handle, table.get_error_string, "cuGetErrorString");
    bind(handle, table.device_count, "cuDeviceGetCount");
    bind(handle, table.device_get, "cuDeviceGet");
    bind(handle, table.device_name, "cuDeviceGetName");
    bind(handle, table.device_attribute, "cuDeviceGetAttribute");
    bind(handle, table.device_memory, "cuDeviceTotalMem_v2");
    bind(handle, table.ctx_get_current, "cuCtxGetCurrent");
    bind(handle, table.ctx_set_current, "cuCtxSetCurrent");
    bind(handle, table.primary_ctx_retain, "cuDevicePrimaryCtxRetain");
    bind(handle, table.primary_ctx_release, "cuDevicePrimaryCtxRelease_v2");
    bind(handle, table.exchange_capture_mode, "cuThreadExchangeStreamCaptureMode");
    bind(handle, table.library_load_data, "cuLibraryLoadData");
    bind(handle, table.library_unload, "cuLibraryUnload");
    bind(handle, table.library_get_kernel, "cuLibraryGetKernel");
    bind(handle, table.kernel_get_function, "cuKernelGetFunction");
    bind(handle, table.kernel_set_attribute, "cuKernelSetAttribute");
    bind(handle, table.stream_is_capturing, "cuStreamIsCapturing");
    bind(handle, table.tensor_map_encode, "cuTensorMapEncodeTiled");
    bind(handle, table.memset_words, "cuMemsetD32Async");
    bind(handle, table.launch, "cuLaunchKernelEx");
    bind(handle, table.most_clusters, "cuOccupancyMaxActiveClusters");
    bind(handle, table.stream_get_attribute, "cuStreamGetAttribute");
    bind(handle, table.stream_set_attribute, "cuStreamSetAttribute");
    bind(handle, table.ctx_get_limit, "cuCtxGetLimit");
    bind(handle, table.ctx_set_limit, "cuCtxSetLimit");
    bind(handle, table.ctx_reset_persisting_l2, "cuCtxResetPersistingL2Cache");
    return table;
}

std::string describe(const Driver& table, CUresult result) {
    const char* text = nullptr;
    if (table.get_error_string == nullptr || table.get_error_string(result, &text) != CUDA_SUCCESS || text == nullptr)
        return fmt::format("CUDA error {}", static_cast<int>(result));
    return fmt::format("{} (CUDA error {})", text, static_cast<int>(result));
}

const Driver& real_driver() {
    static constinit std::atomic<const Driver*> opened_once{nullptr};
    return made_once(opened_once, [] {  // a throw leaves it unset, so a driver installed later is found
        const Driver opened = open_driver();
        if (const CUresult result = opened.init(0); result != CUDA_SUCCESS)
            throw Error(
                fmt::format("cuInit: {}; is a GPU visible (nvidia-smi, CUDA_VISIBLE_DEVICES)?", describe(opened, result)));
        return opened;
    });
}

const Driver& make_ready() {
    if (forked.load())
        throw Error(
            "this process was forked after its parent had used CUDA, which CUDA does not support; start workers with "
            "multiprocessing's \"spawn\" or \"forkserver\", or fork before the first CUDA call");
    const bool before = used.exchange(true);  // set before cuInit: a child forked during it cannot use the driver
    const Driver* table = installed.load();
    try {
        if (table == nullptr) table = &real_driver();
    } catch (...) {
        used.store(before);
        throw;
    }
    ready.store(table, std::memory_order_release);
    return *table;
}

}  // namespace

const Driver& driver() {
    if (const Driver* table = ready.load(std::memory_order_acquire)) return *table;
    return make_ready();
}

bool driver_available(std::string* why_not) {
    try {
        driver();
        return true;
    } catch (const std::exception& error) {
        if (why_not != nullptr) *why_not = error.what();
        return false;
    }
}

void install_driver(const Driver* table) {
    installed.store(table);
    ready.store(nullptr);
}

void check(CUresult result, const char* call) {
    if (result != CUDA_SUCCESS) throw Error(fmt::format("{}: {}", call, describe(driver(), result)));
}

}  // namespace gdn_cuda::jit
