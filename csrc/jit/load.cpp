// Loads cubins into the driver and launches kernels.

#include <atomic>
#include <chrono>
#include <map>

#include "context.hpp"
#include "driver.hpp"
#include "errors.hpp"
#include "fork.hpp"
#include "interrupt.hpp"
#include "kernel.hpp"
#include "runtime.hpp"
#include "text.hpp"

namespace gdn_cuda::jit {
namespace {

constexpr int kSharedWithoutOptIn = 48 << 10;
constexpr unsigned kMostThreads = 1024, kMostBlocksX = 0x7fffffff, kMostBlocksYZ = 65535, kPortableCluster = 8;

struct Loaded {
    std::map<std::string, CUkernel> kernels;  // by code key, which includes the arch
    std::vector<LoadEvent> events;
};
Guarded<Loaded> loaded;
std::atomic<bool> any_loaded{false};

void refuse_capture(const Driver& cuda, const KernelSource& source, CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    const CUresult result = cuda.stream_is_capturing(stream, &status);
    // "Implicit": the legacy default stream, queried while another stream captures.
    if (result != CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) check(result, "cuStreamIsCapturing");
    if (result == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_NONE) return;
    throw Error(fmt::format(
        "{} {}: a cold kernel cannot be loaded under CUDA graph capture; call gdn_cuda.warmup() or run the operator "
        "once before capturing",
        source.id(), source.configuration));
}

CUkernel load_library(const Driver& cuda, const KernelSource& source, const DeviceTraits& traits, const Cubin& cubin) {
    CUlibrary library = nullptr;
    if (const CUresult result = cuda.library_load_data(&library, cubin.bytes.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
        result != CUDA_SUCCESS) {
        int version = 0;
        cuda.driver_version(&version);
        const std::string call = fmt::format(
            "{}: loading its cubin for {} on {} (driver for CUDA {}.{}; an older driver than the compiler's "
            "release may refuse it) by cuLibraryLoadData",
            source.id(), traits.arch, traits.name, version / 1000, version % 1000 / 10);
        check(result, call.c_str());
    }
    CUkernel kernel = nullptr;
    CUfunction function = nullptr;
    CUresult result = cuda.library_get_kernel(&kernel, library, cubin.symbol.c_str());
    // The driver loads lazily: without this the first launch would load, possibly during graph capture.
    if (result == CUDA_SUCCESS) result = cuda.kernel_get_function(&function, kernel);
    if (result != CUDA_SUCCESS) {
        cuda.library_unload(library);
        check(result, fmt::format("{}: finding {} in its cubin", source.id(), cubin.symbol).c_str());
    }
    return kernel;
}

[[noreturn]] void bad_launch(const LoadedKernel& kernel, const char* what, const std::string& expected,
                             const std::string& got) {
    throw Error(fmt::format("launch of {}: {}: expected {}, got {}", kernel.id, what, expected, got));
}

void check_shape(const LoadedKernel& kernel, const LaunchShape& shape, int ordinal) {
    const auto [x, y, z] = shape.grid;
    if (x == 0 || y == 0 || z == 0 || x > kMostBlocksX || y > kMostBlocksYZ || z > kMostBlocksYZ) [[unlikely]]
        bad_launch(kernel, "grid", fmt::format("1 to {} x {} x {} blocks", kMostBlocksX, kMostBlocksYZ, kMostBlocksYZ),
                   fmt::format("{} x {} x {}", x, y, z));
    if (shape.threads == 0 || shape.threads > kMostThreads) [[unlikely]]
        bad_launch(kernel, "threads", fmt::format("1 to {}", kMostThreads), fmt::format("{}", shape.threads));
    const int most_shared = device_traits(ordinal).shared_bytes_per_block;
    if (shape.shared_bytes > static_cast<unsigned>(most_shared)) [[unlikely]]
        bad_launch(kernel, "shared memory", fmt::format("at most {} bytes", most_shared),
                   fmt::format("{}", shape.shared_bytes));
}

[[noreturn]] void failed_launch(CUresult result, const LoadedKernel& kernel, const LaunchShape& shape) {
    const auto& grid = shape.grid;
    check(result, fmt::format("launch of {} ({} x {} x {} blocks of {} threads, {} bytes shared) by cuLaunchKernelEx",
                              kernel.id, grid[0], grid[1], grid[2], shape.threads, shape.shared_bytes)
                      .c_str());
    throw Error("launch: unreachable");
}

// Before CUDA 12.3 a captured stream has no programmatic edges; without them a launch waits for the one before.
bool may_start_early() {
    constexpr int kFirst = 12030;
    static const bool may = [] {
        int version = 0;
        check(driver().driver_version(&version), "cuDriverGetVersion");
        return version >= kFirst;
    }();
    return may;
}

struct Packed {
    CUlaunchAttribute attributes[2]{};
    CUlaunchConfig config{};

    Packed(const Packed&) = delete;
    Packed& operator=(const Packed&) = delete;
    Packed(const LaunchShape& shape, CUstream stream) {
        config.gridDimX = shape.grid[0], config.gridDimY = shape.grid[1], config.gridDimZ = shape.grid[2];
        config.blockDimX = shape.threads, config.blockDimY = config.blockDimZ = 1;
        config.sharedMemBytes = shape.shared_bytes;
        config.hStream = stream;
        config.attrs = attributes;
        if (shape.early_start && may_start_early()) {
            CUlaunchAttribute& early = attributes[config.numAttrs++];
            early.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
            early.value.programmaticStreamSerializationAllowed = 1;
        }
        if (shape.cluster > 1) {
            CUlaunchAttribute& cluster = attributes[config.numAttrs++];
            cluster.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
            cluster.value.clusterDim.x = shape.cluster;
            cluster.value.clusterDim.y = cluster.value.clusterDim.z = 1;
        }
    }
};

CUfunction function_of(const LoadedKernel& kernel) {
    return reinterpret_cast<CUfunction>(kernel.handle);  // the driver accepts a CUkernel as well
}

}  // namespace

std::vector<LoadEvent> load_events() {
    return loaded.lock()->events;
}

bool any_kernel_loaded() {
    return any_loaded.load();
}

void require_shared_memory(const KernelSource& source, int shared_bytes, const DeviceTraits& device) {
    if (shared_bytes > device.shared_bytes_per_block)
        throw Error(fmt::format("{} {}: needs {} bytes of shared memory per block; {} ({}) has {}", source.id(),
                                source.configuration, shared_bytes, device.name, device.arch, device.shared_bytes_per_block));
}

LoadedKernel load(const KernelSource& source, int ordinal, CUstream stream, int shared_bytes) {
    const auto start = std::chrono::steady_clock::now();
    const Driver& cuda = driver();
    if (have_context(cuda))  // without a context nothing can be capturing
        refuse_capture(cuda, source, stream);
    const DeviceTraits& traits = device_traits(ordinal);
    require_shared_memory(source, shared_bytes, traits);
    if (!have_context(cuda)) use_primary_context(cuda, ordinal);

    const Obtained obtained = obtain(source, traits.arch);
    const std::string key = code_key(source, traits.arch);
    const auto all = loaded.lock();
    const RelaxedCapture relaxed(cuda);
    CUkernel& kernel = all->kernels[key];
    if (kernel == nullptr) kernel = load_library(cuda, source, traits, obtained.cubin);
    if (shared_bytes > kSharedWithoutOptIn) {
        CUdevice device = 0;
        check(cuda.device_get(&device, ordinal), "cuDeviceGet");
        check(cuda.kernel_set_attribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes, kernel, device),
              "cuKernelSetAttribute");
    }
    any_loaded.store(true);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    all->events.push_back({source.id(), source.configuration, traits.arch, to_string(obtained.origin), seconds});
    return {kernel, source.id()};
}

const LoadedKernel& LoadedKernels::get(const KernelSource& source, int ordinal, CUstream stream, int shared_bytes) {
    const std::pair key(ordinal, source.configuration);
    const auto known = kernels_.find(key);
    if (known != kernels_.end()) return known->second;
    const LoadedKernel& kernel = kernels_.emplace(key, load(source, ordinal, stream, shared_bytes)).first->second;
    ask_for_interruption();  // the end of a long call
    return kernel;
}

void launch(const LoadedKernel& kernel, const LaunchShape& shape, int ordinal, CUstream stream, const void* arguments) {
    const Driver& cuda = driver();
    check_shape(kernel, shape, ordinal);
    Packed packed(shape, stream);
    void* parameters[] = {const_cast<void*>(arguments)};
    const CUresult result =
        in_context(cuda, ordinal, [&] { return cuda.launch(&packed.config, function_of(kernel), parameters, nullptr); });
    if (result != CUDA_SUCCESS) [[unlikely]]
        failed_launch(result, kernel, shape);
}

void clear_words(void* words, std::size_t count, int ordinal, CUstream stream) {
    if (ordinal == kStandIn || count == 0) return;
    const Driver& cuda = driver();
    check(in_context(cuda, ordinal, [&] { return cuda.memset_words(reinterpret_cast<CUdeviceptr>(words), 0, count, stream); }),
          "cuMemsetD32Async");
}

int most_clusters(const LoadedKernel& kernel, const LaunchShape& shape, int ordinal) {
    const Driver& cuda = driver();
    check_shape(kernel, shape, ordinal);
    if (!have_context(cuda)) use_primary_context(cuda, ordinal);
    const RelaxedCapture relaxed(cuda);
    if (shape.cluster > kPortableCluster) {
        CUdevice device = 0;
        check(cuda.device_get(&device, ordinal), "cuDeviceGet");
        if (cuda.kernel_set_attribute(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1, kernel.handle, device) !=
            CUDA_SUCCESS)
            return 0;
    }
    int most = 0;
    const Packed packed(shape, nullptr);
    const CUresult result = cuda.most_clusters(&most, function_of(kernel), &packed.config);
    return result == CUDA_SUCCESS ? most : 0;
}

}  // namespace gdn_cuda::jit
