// Preloaded by host_profile.py: torch's stable ABI as libgdn_cuda.so sees it for CUDA tensors, over tensors of the CPU, and a
// driver whose calls do nothing but count.
#include <cuda.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

struct Counts {
    long launches, maps, memsets, allocations, by_name;
} counts;
std::map<std::string, long>& names() {
    static auto* const all = new std::map<std::string, long>;
    return *all;
}
bool counts_names = false;

template <class Function>
Function* torch_function(const char* name) {
    return reinterpret_cast<Function*>(dlsym(dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_NOW), name));
}

}  // namespace

// ---- torch

EXPORT int32_t aoti_torch_get_device_type(void*, int32_t* type) {
    return *type = 1, 0;  // CUDA
}
EXPORT int32_t aoti_torch_get_device_index(void*, int32_t* index) {
    return *index = 0, 0;
}
EXPORT int32_t aoti_torch_get_current_device_index(int32_t* index) {
    return *index = 0, 0;
}
EXPORT int32_t aoti_torch_get_current_cuda_stream(int32_t, void** stream) {
    return *stream = nullptr, 0;
}
EXPORT int32_t aoti_torch_empty_strided(int64_t rank, const int64_t* sizes, const int64_t* strides, int32_t dtype, int32_t,
                                        int32_t, void** made) {
    static auto* const real =
        torch_function<int32_t(int64_t, const int64_t*, const int64_t*, int32_t, int32_t, int32_t, void**)>(
            "aoti_torch_empty_strided");
    ++counts.allocations;
    return real(rank, sizes, strides, dtype, 0, -1, made);
}
EXPORT int32_t torch_call_dispatcher(const char* name, const char* overload, uint64_t* stack, uint64_t version) {
    static auto* const real = torch_function<int32_t(const char*, const char*, uint64_t*, uint64_t)>("torch_call_dispatcher");
    ++counts.by_name;
    if (counts_names) ++names()[name];
    return real(name, overload, stack, version);
}
// The kernels for CUDA tensors become those for CPU tensors.
EXPORT int32_t aoti_torch_library_init_impl(const char* ns, const char* key, const char* file, uint32_t line, void** library) {
    static auto* const real =
        torch_function<int32_t(const char*, const char*, const char*, uint32_t, void**)>("aoti_torch_library_init_impl");
    return real(ns, std::strcmp(key, "CUDA") == 0 ? "CPU" : key, file, line, library);
}

// ---- libcuda

EXPORT void* dlopen(const char* file, int flags) {
    static auto* const real = reinterpret_cast<void* (*)(const char*, int)>(dlsym(RTLD_NEXT, "dlopen"));
    if (file != nullptr && (std::strcmp(file, "libcuda.so.1") == 0 || std::strcmp(file, "libtorch_cuda.so") == 0)) {
        Dl_info caller, us;
        if (dladdr(__builtin_return_address(0), &caller) && std::strstr(caller.dli_fname, "libgdn_cuda"))
            return dladdr(reinterpret_cast<void*>(&counts), &us) ? real(us.dli_fname, RTLD_NOW) : nullptr;
    }
    return real(file, flags);
}
EXPORT CUresult cuInit(unsigned) {
    return CUDA_SUCCESS;
}
EXPORT CUresult cuDriverGetVersion(int* version) {
    return *version = 13000, CUDA_SUCCESS;
}
EXPORT CUresult cuGetErrorString(CUresult, const char** text) {
    return *text = "none", CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetCount(int* count) {
    return *count = 1, CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGet(CUdevice* device, int) {
    return *device = 0, CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetName(char* name, int, CUdevice) {
    return std::strcpy(name, "NVIDIA H200"), CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice) {
    *value = which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR            ? 9
             : which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR          ? 0
             : which == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT              ? 132
             : which == CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE                     ? 60 << 20
             : which == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN ? 227 << 10
                                                                              : 1;
    return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice) {
    return *bytes = std::size_t{141} << 30, CUDA_SUCCESS;
}
EXPORT CUresult cuCtxGetCurrent(CUcontext* context) {
    return *context = reinterpret_cast<CUcontext>(0x10), CUDA_SUCCESS;
}
EXPORT CUresult cuCtxSetCurrent(CUcontext) {
    return CUDA_SUCCESS;
}
EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
    return *context = reinterpret_cast<CUcontext>(0x10), CUDA_SUCCESS;
}
EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) {
    return CUDA_SUCCESS;
}
EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode*) {
    return CUDA_SUCCESS;
}
EXPORT CUresult cuLibraryLoadData(CUlibrary* library, const void*, CUjit_option*, void**, unsigned, CUlibraryOption*, void**,
                                  unsigned) {
    return *library = reinterpret_cast<CUlibrary>(0x20), CUDA_SUCCESS;
}
EXPORT CUresult cuLibraryUnload(CUlibrary) {
    return CUDA_SUCCESS;
}
EXPORT CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary, const char*) {
    return *kernel = reinterpret_cast<CUkernel>(0x30), CUDA_SUCCESS;
}
EXPORT CUresult cuKernelGetFunction(CUfunction*, CUkernel) {
    return CUDA_SUCCESS;
}
EXPORT CUresult cuKernelSetAttribute(CUfunction_attribute, int, CUkernel, CUdevice) {
    return CUDA_SUCCESS;
}
EXPORT CUresult cuStreamIsCapturing(CUstream, CUstreamCaptureStatus* status) {
    return *status = CU_STREAM_CAPTURE_STATUS_NONE, CUDA_SUCCESS;
}
EXPORT CUresult cuTensorMapEncodeTiled(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                       const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                       CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
    return ++counts.maps, CUDA_SUCCESS;
}
EXPORT CUresult cuMemsetD32Async(CUdeviceptr, unsigned, std::size_t, CUstream) {
    return ++counts.memsets, CUDA_SUCCESS;
}
EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig*, CUfunction, void**, void**) {
    return ++counts.launches, CUDA_SUCCESS;
}
EXPORT CUresult cuOccupancyMaxActiveClusters(int* most, CUfunction, const CUlaunchConfig*) {
    return *most = 16, CUDA_SUCCESS;
}
EXPORT CUresult cuStreamGetAttribute(CUstream, CUstreamAttrID, CUstreamAttrValue*) {
    return CUDA_SUCCESS;
}
EXPORT CUresult cuStreamSetAttribute(CUstream, CUstreamAttrID, const CUstreamAttrValue*) {
    return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxGetLimit(std::size_t* value, CUlimit) {
    return *value = 0, CUDA_SUCCESS;
}
EXPORT CUresult cuCtxSetLimit(CUlimit, std::size_t) {
    return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxResetPersistingL2Cache() {
    return CUDA_SUCCESS;
}

// ---- host_profile.py

// Launches, tensor maps, memsets, allocations by aoti_torch_empty_strided, and calls of the dispatcher by name, since the last
// call; prints these names if `with_names`, from now on.
EXPORT void host_profile_counts(long* into, int with_names) {
    std::memcpy(into, &counts, sizeof counts);
    for (const auto& [name, count] : names()) std::printf("    %s %ld\n", name.c_str(), count);
    std::fflush(stdout);
    names().clear();
    counts = {};
    counts_names = with_names;
}
