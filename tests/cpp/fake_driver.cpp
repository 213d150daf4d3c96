#include "fake_driver.hpp"

#include <cstdint>
#include <cstring>

#include "jit/device.hpp"
#include "jit/runtime.hpp"
#include "jit/store.hpp"

namespace gdn_cuda::test {

Fake fake;

const jit::Driver kFakeDriver = {
    .init = [](unsigned) { return CUDA_SUCCESS; },
    .driver_version = [](int* version) { return *version = 12080, CUDA_SUCCESS; },
    .get_error_string = [](CUresult, const char** text) { return *text = "made up", CUDA_SUCCESS; },
    .device_count = [](int* count) { return *count = fake.devices, CUDA_SUCCESS; },
    .device_get = [](CUdevice* device, int ordinal) { return *device = 100 + ordinal, CUDA_SUCCESS; },
    .device_name = [](char* name, int, CUdevice) { return std::strcpy(name, "Made-up GPU"), CUDA_SUCCESS; },
    .device_attribute =
        [](int* value, CUdevice_attribute which, CUdevice) {
            *value = which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR            ? fake.capability / 10
                     : which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR          ? fake.capability % 10
                     : which == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN ? fake.shared
                                                                                      : 7;
            return CUDA_SUCCESS;
        },
    .device_memory = [](std::size_t* bytes, CUdevice) { return *bytes = std::size_t{24} << 30, CUDA_SUCCESS; },
    .ctx_get_current = [](CUcontext* context) { return *context = fake.context, CUDA_SUCCESS; },
    .ctx_set_current = [](CUcontext context) { return fake.context = context, CUDA_SUCCESS; },
    .primary_ctx_retain =
        [](CUcontext* context, CUdevice device) {
            ++fake.retains;
            fake.may_allocate();
            *context = reinterpret_cast<CUcontext>(static_cast<std::uintptr_t>(device));
            return CUDA_SUCCESS;
        },
    .primary_ctx_release = [](CUdevice) { return ++fake.releases, CUDA_SUCCESS; },
    .exchange_capture_mode = [](CUstreamCaptureMode* mode) { return std::swap(*mode, fake.capture_mode), CUDA_SUCCESS; },
    .library_load_data =
        [](CUlibrary* library, const void*, CUjit_option*, void**, unsigned, CUlibraryOption*, void**, unsigned) {
            ++fake.loads;
            fake.may_allocate();
            *library = reinterpret_cast<CUlibrary>(0x20);
            return fake.load_result;
        },
    .library_unload = [](CUlibrary) { return ++fake.unloads, CUDA_SUCCESS; },
    .library_get_kernel =
        [](CUkernel* kernel, CUlibrary, const char* symbol) {
            fake.symbol = symbol;
            *kernel = reinterpret_cast<CUkernel>(0x30);
            return fake.kernel_result;
        },
    .kernel_get_function =
        [](CUfunction*, CUkernel) {
            fake.may_allocate();
            return ++fake.forced, CUDA_SUCCESS;
        },
    .kernel_set_attribute =
        [](CUfunction_attribute which, int value, CUkernel, CUdevice device) {
            fake.may_allocate();
            if (which != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
                EXPECT_EQ(value, 1);
                return fake.cluster_opt_in.emplace_back(which, device), fake.cluster_result;
            }
            return fake.shared_opt_in.emplace_back(value, device), CUDA_SUCCESS;
        },
    .stream_is_capturing = [](CUstream,
                              CUstreamCaptureStatus* status) { return *status = fake.capturing, fake.capture_result; },
    .memset_words =
        [](CUdeviceptr words, unsigned value, std::size_t count, CUstream stream) {
            ++fake.launches;
            if (fake.launch_needs_context && fake.context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
            fake.cleared = {words, value, count, stream};
            return fake.launch_result;
        },
    .launch =
        [](const CUlaunchConfig* config, CUfunction function, void** parameters, void**) {
            ++fake.launches;
            if (fake.launch_needs_context && fake.context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
            fake.keep(*config);
            fake.function = function;
            std::memcpy(&fake.argument, parameters[0], sizeof fake.argument);
            return fake.launch_result;
        },
    .most_clusters =
        [](int* most, CUfunction function, const CUlaunchConfig* config) {
            fake.keep(*config);
            fake.function = function;
            return *most = fake.clusters, CUDA_SUCCESS;
        },
};

jit::KernelSource Toy::source(const Config& config) {
    return {"gdn", "toy", "{.scale = " + std::to_string(config.scale) + "}", "kernel " + std::to_string(config.scale), false};
}

CUstream stream() {
    return reinterpret_cast<CUstream>(0x40);
}

WithFakeDriver::WithFakeDriver() {
    write(folder / "include/gdn_cuda/kernels/gdn/toy.cuh", "");
    std::filesystem::create_directories(prebuilt);
}

std::string WithFakeDriver::run(const std::function<std::string()>& body) {
    const auto result = in_child({{"GDN_JIT_PREBUILT_DIR", prebuilt}, {"GDN_JIT_DISABLE", "1"}}, [&] {
        jit::init(folder / "include", {});
        jit::install_driver(&kFakeDriver);
        for (int scale : {1, 2}) {
            jit::Store store(prebuilt, ~std::uint64_t{0}, jit::Store::Access::exported);
            store.publish("gdn/toy", jit::code_key(Toy::source({scale}), jit::arch_of(fake.capability)),
                          cubin_of("the_kernel"));
        }
        return body();
    });
    return result.value + result.stderr_text;
}

}  // namespace gdn_cuda::test
