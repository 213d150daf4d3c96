// A CUDA driver made up for tests, a kernel for it, and a fixture whose children load that kernel.
#pragma once

#include <cuda.h>

#include <filesystem>
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "jit/driver.hpp"
#include "jit/source.hpp"
#include "support.hpp"

namespace gdn_cuda::test {

// Everything the fake driver was asked, and what it answers.
struct Fake {
    int capability = 90, devices = 2, shared = 227 << 10;
    CUcontext context = reinterpret_cast<CUcontext>(0x10);
    CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult capture_result = CUDA_SUCCESS, load_result = CUDA_SUCCESS, kernel_result = CUDA_SUCCESS,
             launch_result = CUDA_SUCCESS;
    bool launch_needs_context = false;
    int loads = 0, unloads = 0, launches = 0, retains = 0, releases = 0, forced = 0;
    CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    int breaking_calls = 0;  // that would break another thread's capture in global mode
    std::string symbol;
    std::vector<std::pair<int, CUdevice>> shared_opt_in;
    CUlaunchConfig config{};
    std::vector<CUlaunchAttribute> attributes;
    int clusters = 3;
    std::vector<std::pair<CUfunction_attribute, CUdevice>> cluster_opt_in;
    CUresult cluster_result = CUDA_SUCCESS;
    CUfunction function = nullptr;
    int argument = 0;
    std::tuple<CUdeviceptr, unsigned, std::size_t, CUstream> cleared;

    void may_allocate() { breaking_calls += capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED ? 0 : 1; }
    void keep(const CUlaunchConfig& given) {
        config = given;
        attributes.assign(given.attrs, given.attrs + given.numAttrs);
    }
};
extern Fake fake;
extern const jit::Driver kFakeDriver;

struct Toy {
    struct Config {
        int scale;
        bool operator==(const Config&) const = default;
    };
    static jit::KernelSource source(const Config& config);
    static int shared_bytes(const Config&) { return 1000; }
};

CUstream stream();

// Kernels come from a prebuilt folder, so that no compiler is needed.
struct WithFakeDriver : ::testing::Test {
    TemporaryFolder folder;
    const std::filesystem::path prebuilt = folder / "prebuilt";
    const jit::KernelSource source = Toy::source({1});

    WithFakeDriver();
    std::string run(const std::function<std::string()>& body);  // in a child; what it returned, then its standard error
};

}  // namespace gdn_cuda::test
