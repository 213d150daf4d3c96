// Preloaded by host_parts.py: times what this library's operators take, and what they ask of the driver and of torch.
#include <cuda.h>
#include <dlfcn.h>
#include <x86intrin.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <utility>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

enum Part { kOperators, kLaunches, kMaps, kMemsets, kAllocations, kDrops, kStreams, kByName, kParts };
struct {
    uint64_t ticks[kParts], calls[kParts];
} spent;

struct Timed {
    const Part part;
    const uint64_t start = __rdtsc();
    explicit Timed(Part p) : part(p) {}
    ~Timed() { spent.ticks[part] += __rdtsc() - start, ++spent.calls[part]; }
};

template <class Function>
Function* next(const char* name) {
    void* found = dlsym(RTLD_NEXT, name);
    for (const char* library : {"libtorch_cuda.so", "libtorch_cpu.so"})
        if (void* handle = found != nullptr ? nullptr : dlopen(library, RTLD_NOLOAD | RTLD_NOW)) found = dlsym(handle, name);
    return reinterpret_cast<Function*>(found);
}

// Kernels as torch calls them, which have no place for data: a function for each.
using Kernel = void(uint64_t*, uint64_t, uint64_t);
constexpr std::size_t kMostKernels = 512;
std::array<Kernel*, kMostKernels> kernels{};
std::size_t kernel_count = 0;
template <std::size_t kIndex>
void timed_kernel(uint64_t* stack, uint64_t inputs, uint64_t outputs) {
    const Timed timed(kOperators);
    kernels[kIndex](stack, inputs, outputs);
}
constexpr auto kTimed = []<std::size_t... kIndex>(std::index_sequence<kIndex...>) {
    return std::array<Kernel*, kMostKernels>{timed_kernel<kIndex>...};
}(std::make_index_sequence<kMostKernels>());

}  // namespace

// FORWARD(what is timed, result, name, (parameters), (arguments))
#define FORWARD(part, result, name, parameters, arguments)        \
    EXPORT result name parameters {                               \
        static auto* const real = next<result parameters>(#name); \
        const Timed timed(part);                                  \
        return real arguments;                                    \
    }

FORWARD(kAllocations, int32_t, aoti_torch_empty_strided,
        (int64_t rank, const int64_t* sizes, const int64_t* strides, int32_t dtype, int32_t type, int32_t index, void** made),
        (rank, sizes, strides, dtype, type, index, made))
FORWARD(kDrops, int32_t, aoti_torch_delete_tensor_object, (void* tensor), (tensor))
FORWARD(kStreams, int32_t, aoti_torch_get_current_cuda_stream, (int32_t index, void** stream), (index, stream))
FORWARD(kByName, int32_t, torch_call_dispatcher, (const char* name, const char* overload, uint64_t* stack, uint64_t version),
        (name, overload, stack, version))
FORWARD(kMemsets, CUresult, cuMemsetD32Async, (CUdeviceptr at, unsigned value, std::size_t count, CUstream stream),
        (at, value, count, stream))
FORWARD(kLaunches, CUresult, cuLaunchKernelEx, (const CUlaunchConfig* config, CUfunction kernel, void** values, void** extra),
        (config, kernel, values, extra))
FORWARD(kMaps, CUresult, cuTensorMapEncodeTiled,
        (CUtensorMap * map, CUtensorMapDataType type, cuuint32_t rank, void* data, const cuuint64_t* sizes,
         const cuuint64_t* strides, const cuuint32_t* box, const cuuint32_t* steps, CUtensorMapInterleave interleave,
         CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill),
        (map, type, rank, data, sizes, strides, box, steps, interleave, swizzle, promotion, fill))

EXPORT int32_t torch_library_impl(void* library, const char* name, Kernel* kernel, uint64_t version) {
    static auto* const real = next<int32_t(void*, const char*, Kernel*, uint64_t)>("torch_library_impl");
    if (kernel_count < kMostKernels) {
        kernels[kernel_count] = kernel;
        kernel = kTimed[kernel_count++];
    }
    return real(library, name, kernel, version);
}

// This library gets its driver, and torch's CUDA part, from here; what is not above comes from the libcuda.so.1 that this
// one is linked to.
EXPORT void* dlopen(const char* file, int flags) {
    static auto* const real = reinterpret_cast<void* (*)(const char*, int)>(dlsym(RTLD_NEXT, "dlopen"));
    if (file != nullptr && (std::strcmp(file, "libcuda.so.1") == 0 || std::strcmp(file, "libtorch_cuda.so") == 0)) {
        Dl_info caller, us;
        if (dladdr(__builtin_return_address(0), &caller) && std::strstr(caller.dli_fname, "libgdn_cuda"))
            return dladdr(reinterpret_cast<void*>(&spent), &us) ? real(us.dli_fname, RTLD_NOW) : nullptr;
    }
    return real(file, flags);
}

// ---- host_parts.py

// Ticks and numbers of calls, in the order of Part, since the last call.
EXPORT void host_parts_spent(uint64_t* into) {
    std::memcpy(into, &spent, sizeof spent);
    spent = {};
}
EXPORT double host_parts_ticks_per_us() {
    using Clock = std::chrono::steady_clock;
    const auto start = Clock::now();
    const uint64_t from = __rdtsc();
    while (Clock::now() - start < std::chrono::milliseconds(20)) {
    }
    return static_cast<double>(__rdtsc() - from) / std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// µs of a launch of a kernel that takes one struct of so many bytes, in a run of `calls`. `flags`: 1: may start early; 2: the
// arguments as one buffer.
EXPORT double host_parts_launch(CUfunction kernel, std::size_t bytes, unsigned cluster, unsigned shared, int flags,
                                CUstream stream, int calls) {
    static auto* const launch = next<CUresult(const CUlaunchConfig*, CUfunction, void**, void**)>("cuLaunchKernelEx");
    alignas(64) static unsigned char data[4096];
    CUlaunchAttribute attributes[2]{};
    CUlaunchConfig config{.gridDimX = cluster,
                          .gridDimY = 1,
                          .gridDimZ = 1,
                          .blockDimX = 32,
                          .blockDimY = 1,
                          .blockDimZ = 1,
                          .sharedMemBytes = shared,
                          .hStream = stream,
                          .attrs = attributes,
                          .numAttrs = 0};
    if (flags & 1) {
        attributes[config.numAttrs].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attributes[config.numAttrs++].value.programmaticStreamSerializationAllowed = 1;
    }
    if (cluster > 1) {
        attributes[config.numAttrs].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        attributes[config.numAttrs++].value.clusterDim = {cluster, 1, 1};
    }
    void* values[] = {data};
    void* buffer[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, data, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
    using Clock = std::chrono::steady_clock;
    const auto start = Clock::now();
    for (int i = 0; i < calls; ++i)
        if (launch(&config, kernel, flags & 2 ? nullptr : values, flags & 2 ? buffer : nullptr) != CUDA_SUCCESS) return -1;
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / calls;
}
