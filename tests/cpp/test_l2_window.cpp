// Windows in L2 with a fake_windows driver: the attribute that a stream gets, its restoration, and what is refused.
#include <cstring>
#include <map>

#include "jit/driver.hpp"
#include "jit/l2_window.hpp"
#include "support.hpp"

namespace gdn_cuda::test {
namespace {

using jit::L2Window;

constexpr std::size_t kMost = 40 << 20, kBefore = 1 << 20;

struct FakeWindows {
    int most_persisting = kMost;
    std::size_t set_aside = kBefore;
    int resets = 0;
    CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult set_result = CUDA_SUCCESS;
    std::map<CUstream, CUstreamAttrValue> windows;
} fake_windows;

const jit::Driver kTable = {
    .init = [](unsigned) { return CUDA_SUCCESS; },
    .get_error_string = [](CUresult, const char** text) { return *text = "made up", CUDA_SUCCESS; },
    .device_get = [](CUdevice* device, int ordinal) { return *device = ordinal, CUDA_SUCCESS; },
    .device_attribute =
        [](int* value, CUdevice_attribute which, CUdevice) {
            *value = which == CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE ? fake_windows.most_persisting : 128 << 20;
            return CUDA_SUCCESS;
        },
    .ctx_get_current = [](CUcontext* context) { return *context = nullptr, CUDA_SUCCESS; },
    .ctx_set_current = [](CUcontext) { return CUDA_SUCCESS; },
    .primary_ctx_retain = [](CUcontext* context,
                             CUdevice) { return *context = reinterpret_cast<CUcontext>(0x10), CUDA_SUCCESS; },
    .exchange_capture_mode = [](CUstreamCaptureMode*) { return CUDA_SUCCESS; },
    .stream_is_capturing = [](CUstream,
                              CUstreamCaptureStatus* status) { return *status = fake_windows.capturing, CUDA_SUCCESS; },
    .stream_get_attribute = [](CUstream stream, CUstreamAttrID,
                               CUstreamAttrValue* value) { return *value = fake_windows.windows[stream], CUDA_SUCCESS; },
    .stream_set_attribute =
        [](CUstream stream, CUstreamAttrID which, const CUstreamAttrValue* value) {
            EXPECT_EQ(which, CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW);
            if (fake_windows.set_result == CUDA_SUCCESS) fake_windows.windows[stream] = *value;
            return fake_windows.set_result;
        },
    .ctx_get_limit = [](std::size_t* value, CUlimit) { return *value = fake_windows.set_aside, CUDA_SUCCESS; },
    .ctx_set_limit =
        [](CUlimit which, std::size_t value) {
            EXPECT_EQ(which, CU_LIMIT_PERSISTING_L2_CACHE_SIZE);
            return fake_windows.set_aside = value, CUDA_SUCCESS;
        },
    .ctx_reset_persisting_l2 = [] { return ++fake_windows.resets, CUDA_SUCCESS; },
};

CUstream stream(std::uintptr_t number = 1) {
    return reinterpret_cast<CUstream>(0x100 * number);
}
const void* memory() {
    return reinterpret_cast<const void*>(0x7000);
}

class L2WindowTest : public ::testing::Test {
  protected:
    L2WindowTest() {
        fake_windows = {};
        jit::install_driver(&kTable);
    }
    ~L2WindowTest() override { jit::install_driver(nullptr); }
};

TEST_F(L2WindowTest, AStreamHasItUntilItIsReleased) {
    CUstreamAttrValue own{};
    own.accessPolicyWindow.num_bytes = 77;
    fake_windows.windows[stream()] = own;
    {
        L2Window window(0, stream(), memory(), 5000);
        const auto& set = fake_windows.windows[stream()].accessPolicyWindow;
        EXPECT_EQ(set.base_ptr, memory());
        EXPECT_EQ(set.num_bytes, 5000U);
        EXPECT_EQ(set.hitRatio, 1.0F);
        EXPECT_EQ(set.hitProp, CU_ACCESS_PROPERTY_PERSISTING);
        EXPECT_EQ(fake_windows.set_aside, kBefore) << "it was room enough";
        window.release();
        EXPECT_EQ(fake_windows.windows[stream()].accessPolicyWindow.num_bytes, 77U);
        EXPECT_EQ(fake_windows.resets, 1);
        window.release();
    }
    EXPECT_EQ(fake_windows.resets, 1);
}

TEST_F(L2WindowTest, TheRoomOfADeviceIsThatOfItsWindows) {
    {
        const L2Window one(0, stream(1), memory(), 10 << 20);
        EXPECT_EQ(fake_windows.set_aside, std::size_t{10} << 20);
        {
            const L2Window two(0, stream(2), memory(), 35 << 20);
            EXPECT_EQ(fake_windows.set_aside, kMost);
        }
        EXPECT_EQ(fake_windows.resets, 0) << "the first window's lines would go with it";
    }
    EXPECT_EQ(fake_windows.resets, 1);
    EXPECT_EQ(fake_windows.set_aside, kBefore);
}

TEST_F(L2WindowTest, WhatCannotBeHadIsRefused) {
    EXPECT_CONTAINS(message_of([] { L2Window(0, stream(), memory(), kMost + 1); }), "expected 1 to 41943040 bytes");
    fake_windows.capturing = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    EXPECT_CONTAINS(message_of([] { L2Window(0, stream(), memory(), 100); }), "under CUDA graph capture");
    fake_windows.capturing = CU_STREAM_CAPTURE_STATUS_NONE;
    {
        const L2Window window(0, stream(), memory(), 100);
        EXPECT_CONTAINS(message_of([] { L2Window(0, stream(), memory(), 100); }), "has not been released");
    }
    fake_windows.most_persisting = 0;
    EXPECT_EQ(jit::most_l2_window_bytes(0), 0U);
    EXPECT_CONTAINS(message_of([] { L2Window(0, stream(), memory(), 100); }), "got 100");
}

TEST_F(L2WindowTest, AFailureLeavesEverythingAsItWas) {
    fake_windows.set_result = CUDA_ERROR_INVALID_VALUE;
    EXPECT_CONTAINS(message_of([] { L2Window(0, stream(), memory(), 20 << 20); }), "cuStreamSetAttribute");
    EXPECT_EQ(fake_windows.set_aside, kBefore);
    fake_windows.set_result = CUDA_SUCCESS;
    const L2Window again(0, stream(), memory(), 20 << 20);
}

}  // namespace
}  // namespace gdn_cuda::test
