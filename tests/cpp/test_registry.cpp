// Every registered configuration has a unique name, and fits into a block's shared memory and threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "jit/device.hpp"
#include "launch/registry.hpp"

namespace gdn_cuda {
namespace {

TEST(Registry, TextsAndSourcesAreDistinct) {
    EXPECT_FALSE(registry().empty());
    for (const RegisteredKernel& kernel : registry()) {
        std::set<std::string> texts, codes;
        for (const RegisteredConfiguration& each : kernel.configurations) {
            EXPECT_TRUE(texts.insert(each.source.configuration).second) << each.source.configuration;
            EXPECT_TRUE(codes.insert(each.source.code).second) << each.source.code;
            EXPECT_NE(each.source.code.find(each.source.configuration), std::string::npos);
            EXPECT_NE(each.source.code.find("<gdn_cuda/kernels/" + kernel.family + "/" + kernel.name + ".cuh>"),
                      std::string::npos);
        }
        EXPECT_FALSE(texts.empty()) << kernel.name;
    }
}

TEST(Registry, EveryConfigurationFitsABlock) {
    const jit::DeviceTraits hopper;
    for (const RegisteredKernel& kernel : registry()) {
        for (const RegisteredConfiguration& each : kernel.configurations) {
            EXPECT_GE(each.shared_bytes, 0) << kernel.name << " " << each.source.configuration << ": a plan with no size";
            EXPECT_LE(each.shared_bytes, hopper.shared_bytes_per_block) << kernel.name << " " << each.source.configuration;
            EXPECT_GT(each.threads, 0);
            EXPECT_LE(each.threads, 1024);
            EXPECT_EQ(each.threads % 32, 0) << kernel.name;
        }
    }
}

// The host chooses configurations of these kernels by the device's shared memory, as tests of their heuristics show; of
// gdn/replay it refuses those that have no room.
const std::set<std::string> kChosenByRoom = {"conv/hyena_long",   "conv/hyena_long_backward",
                                             "conv/hyena_medium", "conv/hyena_medium_backward",
                                             "gdn/replay",        "ssd/prefill_mma"};

TEST(Registry, WhatAnArchitectureRunsFitsIt) {
    for (const char* arch : {"sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"}) {
        const auto device = jit::DeviceTraits::for_arch(arch);
        for (const RegisteredKernel& kernel : registry()) {
            if (device.capability < kernel.min_capability || device.capability > kernel.max_capability) continue;
            const auto fits = [&](const RegisteredConfiguration& each) {
                return each.shared_bytes <= device.shared_bytes_per_block;
            };
            if (kChosenByRoom.contains(kernel.family + "/" + kernel.name)) {
                EXPECT_TRUE(std::ranges::any_of(kernel.configurations, fits)) << arch << ": " << kernel.name;
                continue;
            }
            for (const RegisteredConfiguration& each : kernel.configurations)
                EXPECT_TRUE(fits(each)) << arch << ": " << kernel.name << " " << each.source.configuration << " takes "
                                        << each.shared_bytes << " bytes";
        }
    }
}

// Whatever the order in which static objects are initialized.
TEST(Registry, KernelsAreSortedAndNamedOnce) {
    std::string before;
    for (const RegisteredKernel& kernel : registry()) {
        const std::string id = kernel.family + "/" + kernel.name;
        EXPECT_LT(before, id);
        before = id;
        EXPECT_FALSE(kernel.summary.empty());
        EXPECT_GE(kernel.min_capability, 80);
    }
}

}  // namespace
}  // namespace gdn_cuda
