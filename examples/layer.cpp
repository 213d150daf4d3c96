// A Qwen3-Next-shaped layer from C++: prefill of a short prompt, then one decode step, checked against the recurrence in fp64;
// then what a warm call costs the host. In this source tree, once ./develop.sh has built the library:
//
//     torch=$(python -c "import torch; print(*torch.__path__)")
//     compile=(${CXX:-g++} -std=c++20 -O2 -DTORCH_TARGET_VERSION=0x020a000000000000 -Iinclude -isystem "$torch/include")
//     link=(-L"$torch/lib" -ltorch_cpu -lc10 -Lgdn_cuda/lib -lgdn_cuda -ldl -Wl,-rpath,"$torch/lib:$PWD/gdn_cuda/lib")
//     "${compile[@]}" examples/layer.cpp "${link[@]}" -o layer
//
// With CMake and an installed gdn_cuda: find_package(gdn_cuda REQUIRED), then
// target_link_libraries(layer PRIVATE gdn_cuda::gdn_cuda ${CMAKE_DL_LIBS}). Where /usr/local/cuda has no NVRTC, run it with
// GDN_CUDA_HOME=$torch/../nvidia/cu13 (CUDA 12 wheels: $torch/../nvidia).
// Exit code: 0, all is right; 1, a result is wrong or a call failed; 77, no GPU or no CUDA build of torch.
#include <dlfcn.h>
#include <torch/csrc/stable/ops.h>
#include <torch/headeronly/util/BFloat16.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <gdn_cuda/api.hpp>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

namespace stable = torch::stable;
using c10::BFloat16;
using gdn_cuda::Tensor;
using torch::headeronly::DeviceType;
using torch::headeronly::ScalarType;

constexpr int kBatch = 4, kKeyHeads = 16, kValueHeads = 32, kDim = 128, kSlots = kBatch + 1;
constexpr int kTokens = 100;  // tokens of the prompt
constexpr int kNoGpu = 77;

// Values on the host, and the same values in a tensor on the GPU.
template <class T, ScalarType kType>
struct Input {
    std::vector<T> host;
    Tensor gpu;

    Input(const std::vector<int64_t>& sizes, std::vector<T> values) : host(std::move(values)) {
        const std::vector<int64_t> count = {static_cast<int64_t>(host.size())}, stride = {1};
        const Tensor flat = stable::from_blob(host.data(), count, stride, stable::Device(DeviceType::CPU), kType);
        gpu = stable::view(stable::to(flat, stable::Device(DeviceType::CUDA, 0)), sizes);
    }
    Input(const std::vector<int64_t>& sizes, double low, double high) : Input(sizes, uniform(sizes, low, high)) {}

    static std::vector<T> uniform(const std::vector<int64_t>& sizes, double low, double high) {
        static std::mt19937 generator(2026);  // its values are the same everywhere, those of <random>'s distributions are not
        size_t count = 1;
        for (const int64_t size : sizes) count *= size;
        std::vector<T> values(count);
        for (T& value : values) value = static_cast<float>(low + (high - low) * generator() * 0x1p-32);
        return values;
    }
};
using Bf16 = Input<BFloat16, ScalarType::BFloat16>;
using Fp32 = Input<float, ScalarType::Float>;

struct Batch {
    Bf16 query{{kBatch, 1, kKeyHeads, kDim}, -1, 1}, key{{kBatch, 1, kKeyHeads, kDim}, -1, 1};
    Bf16 value{{kBatch, 1, kValueHeads, kDim}, -1, 1};
    Bf16 a{{kBatch, 1, kValueHeads}, -2, 2}, b{{kBatch, 1, kValueHeads}, -3, 3};
    Fp32 A_log{{kValueHeads}, -4, 2}, dt_bias{{kValueHeads}, -2, 1};
    Fp32 pool{{kSlots, kValueHeads, kDim, kDim}, -1, 1};
    Input<int32_t, ScalarType::Int> slots{{kBatch}, {4, 0, 3, 2}};  // slot 1 must stay as it is
};

struct Prompt {
    Bf16 query{{1, kTokens, kKeyHeads, kDim}, -1, 1}, key{{1, kTokens, kKeyHeads, kDim}, -1, 1};
    Bf16 value{{1, kTokens, kValueHeads, kDim}, -1, 1};
    Fp32 beta{{1, kTokens, kValueHeads}, 0, 1}, gate{{1, kTokens, kValueHeads}, -0.5, 0};
};

struct Expected {
    std::vector<double> beta, gate, output, pool;
};

std::array<double, kDim> l2_normalized(const BFloat16* head) {
    std::array<double, kDim> result{};
    std::copy_n(head, kDim, result.begin());
    double squares = 0;
    for (const double x : result) squares += x * x;
    for (double& x : result) x /= std::sqrt(squares + 1e-6);
    return result;
}

// One token of one head, exactly as it is defined: updates the state and appends the outputs.
void advance(double* state, const BFloat16* query, const BFloat16* key, const BFloat16* value, double beta, double gate,
             std::vector<double>& outputs) {
    const auto q = l2_normalized(query), k = l2_normalized(key);
    for (int row = 0; row < kDim; ++row, state += kDim) {
        double predicted = 0, out = 0;
        for (int i = 0; i < kDim; ++i) predicted += (state[i] *= std::exp(gate)) * k[i];
        const double correction = beta * (value[row] - predicted);
        for (int i = 0; i < kDim; ++i) out += (state[i] += correction * k[i]) * q[i];
        outputs.push_back(out / std::sqrt(kDim));
    }
}

constexpr int key_head(int value_head) {
    return value_head / (kValueHeads / kKeyHeads);
}

Expected recurrence(const Batch& batch) {
    Expected expected;
    expected.pool.assign(batch.pool.host.begin(), batch.pool.host.end());
    for (int at = 0; at < kBatch * kValueHeads; ++at) {
        const int n = at / kValueHeads, h = at % kValueHeads, key_at = n * kKeyHeads + key_head(h);
        const double x = double{batch.a.host[at]} + batch.dt_bias.host[h], b = batch.b.host[at];
        const double beta = 1 / (1 + std::exp(-b)), gate = -std::exp(double{batch.A_log.host[h]}) * std::log1p(std::exp(x));
        advance(&expected.pool[(batch.slots.host[n] * kValueHeads + h) * kDim * kDim], &batch.query.host[key_at * kDim],
                &batch.key.host[key_at * kDim], &batch.value.host[at * kDim], beta, gate, expected.output);
        expected.beta.push_back(beta);
        expected.gate.push_back(gate);
    }
    return expected;
}

Expected recurrence(const Prompt& prompt) {
    Expected expected;
    expected.pool.assign(kValueHeads * kDim * kDim, 0);
    for (int at = 0; at < kTokens * kValueHeads; ++at) {
        const int h = at % kValueHeads, key_at = at / kValueHeads * kKeyHeads + key_head(h);
        advance(&expected.pool[h * kDim * kDim], &prompt.query.host[key_at * kDim], &prompt.key.host[key_at * kDim],
                &prompt.value.host[at * kDim], prompt.beta.host[at], prompt.gate.host[at], expected.output);
    }
    return expected;
}

// Prints the relative RMS error of what the GPU computed; false where it is above the limit or not a number.
bool agrees(const char* what, const Tensor& computed, const std::vector<double>& expected, double limit) {
    const Tensor host = stable::to(computed, ScalarType::Float, std::nullopt, stable::Device(DeviceType::CPU));
    const float* values = host.const_data_ptr<float>();
    double error = 0, size = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
        error += (values[i] - expected[i]) * (values[i] - expected[i]);
        size += expected[i] * expected[i];
    }
    const double relative = std::sqrt(error / size);
    std::printf("%s: relative RMS error %.1e, limit %.0e\n", what, relative, limit);
    return relative <= limit;
}

// A function of libcuda, found by name so that the program needs no CUDA headers; null without a driver.
template <class... Arguments>
auto driver_function(const char* name) {
    static void* const library = dlopen("libcuda.so.1", RTLD_NOW);
    return reinterpret_cast<int (*)(Arguments...)>(library == nullptr ? nullptr : dlsym(library, name));
}

void require_success(int result) {
    if (result != 0) throw std::runtime_error("the driver answered CUDA error " + std::to_string(result));
}

bool gpu_is_there() {
    const auto init = driver_function<unsigned>("cuInit");
    const auto count_devices = driver_function<int*>("cuDeviceGetCount");
    int devices = 0;
    return init != nullptr && init(0) == 0 && count_devices(&devices) == 0 && devices > 0;
}

// Host time of one call: the median over batches, each so short that no call waits for room in the launch queue.
template <class Call>
double host_microseconds(const Call& call) {
    constexpr int kCalls = 100;
    const auto synchronize = driver_function<void*>("cuStreamSynchronize");
    std::array<double, 20> batches{};
    for (double& each : batches) {
        const auto start = std::chrono::steady_clock::now();
        for (int i = 0; i < kCalls; ++i) call();
        each = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() / kCalls;
        require_success(synchronize(nullptr));  // the default stream, which is torch's current one here
    }
    std::ranges::nth_element(batches, batches.begin() + batches.size() / 2);
    return batches[batches.size() / 2];
}

// The same for a kernel that does nothing, launched through the driver and nothing else.
double bare_launch_microseconds() {
    constexpr const char* kSource = ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry nothing() { ret; }\n";
    void *module = nullptr, *kernel = nullptr;
    require_success(driver_function<void**, const void*>("cuModuleLoadData")(&module, kSource));
    require_success(driver_function<void**, void*, const char*>("cuModuleGetFunction")(&kernel, module, "nothing"));
    const auto launch =
        driver_function<void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**>(
            "cuLaunchKernel");
    return host_microseconds([&] { require_success(launch(kernel, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr)); });
}

bool prefill_is_right() {
    const Prompt prompt;
    const Expected expected = recurrence(prompt);
    const auto result = gdn_cuda::chunked_forward({.query = prompt.query.gpu,
                                                   .key = prompt.key.gpu,
                                                   .value = prompt.value.gpu,
                                                   .beta = prompt.beta.gpu,
                                                   .gate = prompt.gate.gpu,
                                                   .use_qk_l2norm = true});
    constexpr double kChunked = 5e-3;  // the factors of tensor-core products are bf16
    bool right = agrees("prefill_output", result.output, expected.output, kChunked);
    right &= agrees("prefill_state", result.final_state.value(), expected.pool, kChunked);
    return right;
}

int run() {
    bool right = prefill_is_right();
    const Batch x;
    const Expected expected = recurrence(x);
    gdn_cuda::FusedDecode step{.query = x.query.gpu,
                               .key = x.key.gpu,
                               .value = x.value.gpu,
                               .a = x.a.gpu,
                               .b = x.b.gpu,
                               .gates = {.A_log = x.A_log.gpu, .dt_bias = x.dt_bias.gpu},
                               .state_pool = x.pool.gpu,
                               .state_indices = x.slots.gpu};
    const auto decode = [&] { return gdn_cuda::fused_decode(step); };
    const auto [beta, gate] =
        gdn_cuda::fused_gdn_gating({.A_log = x.A_log.gpu, .dt_bias = x.dt_bias.gpu, .a = x.a.gpu, .b = x.b.gpu});
    const Tensor output = decode();

    constexpr double kBf16 = 2e-3, kFp32 = 1e-5;  // rounding to bf16 alone makes up to 1.7e-3
    right &= agrees("beta", beta, expected.beta, kBf16);
    right &= agrees("gate", gate, expected.gate, kFp32);
    right &= agrees("output", output, expected.output, kBf16);
    right &= agrees("state", x.pool.gpu, expected.pool, kFp32);

    const double call = host_microseconds(decode), bare = bare_launch_microseconds();
    std::printf("host: fused_decode %.2f us, bare launch %.2f us, difference %.2f us\n", call, bare, call - bare);
    step.out = output;  // a call that allocates nothing
    std::printf("host: fused_decode into a given output %.2f us\n", host_microseconds(decode));
    return right ? 0 : 1;
}

}  // namespace

int main() try {
    if (!gpu_is_there()) {
        std::puts("no GPU: nothing was run");
        return kNoGpu;
    }
    // gdn_cuda does not load torch's CUDA part by itself. Linking it would do as well, but not with a CPU build of torch.
    if (dlopen("libtorch_cuda.so", RTLD_NOW) == nullptr) {
        std::printf("no CUDA build of torch: %s\n", dlerror());
        return kNoGpu;
    }
    return run();
} catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
