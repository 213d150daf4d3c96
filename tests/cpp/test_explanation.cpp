// Explained calls record what the same calls load and launch, here with a fake driver.
#include <thread>

#include "fake_driver.hpp"
#include "families/chunked/launch.hpp"
#include "families/gdn/compute_o.hpp"
#include "families/gdn/decode.hpp"
#include "families/gdn/prefill_mma.hpp"
#include "families/gdn/recurrent.hpp"
#include "families/layers/gating.hpp"
#include "families/structured/cauchy.hpp"
#include "families/structured/toeplitz_eliminate.hpp"
#include "families/structured/toeplitz_gko.hpp"
#include "families/structured/vandermonde.hpp"
#include "jit/store.hpp"
#include "launch/explanation.hpp"
#include "launch/registry.hpp"

namespace gdn_cuda::test {
namespace {

constexpr Target kExplained{jit::kStandIn, nullptr};

const jit::KernelSource& registered(const ExplainedStep& step) {
    for (const RegisteredKernel& kernel : registry())
        for (const RegisteredConfiguration& entry : kernel.configurations)
            if (entry.source.id() == step.kernel && entry.source.configuration == step.configuration) return entry.source;
    throw jit::Error(step.kernel + " " + step.configuration + " is not registered");
}

// Empty if `call` launches what its explanation says. Only the explained configuration can be loaded.
std::string difference(const std::filesystem::path& prebuilt, const std::function<void(const Target&)>& call) {
    std::vector<ExplainedStep> steps;
    {
        Explanation explanation(jit::device_traits(0));
        call(kExplained);
        steps = std::move(explanation.steps);
    }
    if (fake.launches != 0 || fake.loads != 0) return "an explained call reached the driver; ";
    if (steps.size() != 1) return fmt::format("{} launches explained; ", steps.size());
    const ExplainedStep& step = steps.front();
    const jit::KernelSource& source = registered(step);
    jit::Store(prebuilt, ~std::uint64_t{0}, jit::Store::Access::exported)
        .publish(source.id(), jit::code_key(source, jit::arch_of(fake.capability)), cubin_of("the_kernel"));
    call({0, stream()});
    const jit::LoadEvent loaded = jit::load_events().back();
    const CUlaunchConfig made = fake.config;
    fake.launches = fake.loads = 0;
    const auto text = [](const std::string& kernel, const std::string& configuration, unsigned x, unsigned y, unsigned z,
                         unsigned threads, unsigned shared) {
        return fmt::format("{} {} {}x{}x{} of {}, {} bytes", kernel, configuration, x, y, z, threads, shared);
    };
    const auto& [x, y, z] = step.shape.grid;
    const std::string said = text(step.kernel, step.configuration, x, y, z, step.shape.threads, step.shape.shared_bytes);
    const std::string done = text(loaded.kernel, loaded.configuration, made.gridDimX, made.gridDimY, made.gridDimZ,
                                  made.blockDimX, made.sharedMemBytes);
    return said == done ? "" : fmt::format("explained {}, launched {}; ", said, done);
}

using Explained = WithFakeDriver;

TEST_F(Explained, CallsLaunchWhatTheyAreExplainedToLaunch) {
    using namespace gdn;
    using namespace structured;
    const auto body = [&] {
        jit::init(GDN_TEST_LIBRARY_INCLUDE, {});
        std::string found;
        const auto compare = [&](const auto& call) { found += difference(prebuilt, call); };
        for (const i64 sequences : {1, 64})
            compare([=](const Target& target) {
                Decode::run({sequences, 4, 128, 128, DType::bf16, DType::f32, true}, {.dv = 128}, target);
            });
        for (const bool aligned : {true, false})
            compare([=](const Target& target) {
                const GdnCall args{.sequences = 3, .heads = 4, .dv = 64};
                Recurrent::run({3, 5, 4, 128, 64, DType::f16, DType::bf16, aligned}, args, target);
            });
        compare([](const Target& target) { layers::Gating::run({9, 8, DType::f32, true}, {.rows = 9, .columns = 8}, target); });
        compare([](const Target& target) { ComputeO::run({2, 4, 128, 64, DType::f32, true}, {.heads = 4}, 6, target); });
        compare([](const Target& target) {
            PrefillMma::run({2, 100, 4, 192, 96, DType::bf16, DType::f32}, {.sequences = 2, .heads = 4, .dv = 96}, target);
        });
        for (const i64 rows : {1, 64})
            compare([=](const Target& target) {
                const CauchyProblem problem{rows, rows, 500, DType::c64, true, 32};
                Cauchy::run(problem, cauchy_choice(problem, jit::device_traits(target.ordinal)), {}, target);
            });
        compare([](const Target& target) { Vandermonde::run({3, 5000, DType::c128, 32}, {}, target); });
        compare([](const Target& target) { ToeplitzGko::run({3, 1, 300, DType::f64}, {}, target); });
        compare([](const Target& target) {
            const ToeplitzEliminateProblem problem{2, 2, 2000};
            ToeplitzEliminate::run(toeplitz_eliminate_config(problem, jit::device_traits(target.ordinal)), problem, {}, target);
        });
        return found;
    };
    EXPECT_EQ(run(body), "");
}

TEST(ExplainedLaunch, IsRefusedWhereTheDeviceWouldRefuseIt) {
    const auto prefill = [](const char* arch) {
        const Explanation explanation(jit::DeviceTraits::for_arch(arch));
        const gdn::ChunkedProblem problem{1, 64, 1, 128, 128, DType::bf16, DType::f32};
        gdn::Prefill::run(problem, gdn::Prefill::schedule(problem, kExplained), {.sequences = 1, .heads = 1, .dv = 128}, {},
                          kExplained);
        return explanation.steps.size();
    };
    EXPECT_EQ(prefill("sm_90a"), 1u) << "without a driver, which would describe tensors to the TMA";
    EXPECT_EQ(message_of([&] { prefill("sm_80"); }), "gdn/prefill: expected a GPU of capability 9.0, got NVIDIA A100 (8.0)");
    const auto in_little_memory = [] {
        jit::DeviceTraits small;
        small.shared_bytes_per_block = 48 << 10;
        const Explanation explanation(small);
        const gdn::ChunkedProblem problem{1, 64, 1, 128, 128, DType::bf16, DType::f32};
        gdn::PrefillMma::run(problem, {.sequences = 1, .heads = 1, .dv = 128}, kExplained);
    };
    EXPECT_CONTAINS(message_of(in_little_memory), "bytes of shared memory per block; NVIDIA H200 (sm_90a) has 49152");
}

TEST(ExplainedLaunch, TheStandInIsOfOneThreadAndOneExplanation) {
    const auto multiprocessors = [] { return jit::device_traits(jit::kStandIn).multiprocessors; };
    jit::DeviceTraits device;
    {
        device.multiprocessors = 7;
        const Explanation outer(device);
        {
            device.multiprocessors = 9;
            const Explanation inner(device);
            EXPECT_EQ(multiprocessors(), 9);
        }
        EXPECT_EQ(multiprocessors(), 7);
        std::thread([] { EXPECT_FALSE(explaining()); }).join();
    }
    EXPECT_FALSE(explaining());
    EXPECT_CONTAINS(message_of(multiprocessors), "expected an ordinal below 64, got -1");
}

}  // namespace
}  // namespace gdn_cuda::test
