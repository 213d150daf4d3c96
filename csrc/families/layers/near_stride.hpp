// A check that kernels of layers share.
#pragma once

#include "../../operators/tensor.hpp"

namespace gdn_cuda::layers {

// Checks a stride that the kernel multiplies by small factors in 32 bits.
inline int near_stride(const Checks& check, const char* argument, const View& view, int dimension) {
    constexpr int64_t kMost = int64_t{1} << 28;
    const int64_t stride = view.stride(dimension);
    GDN_REQUIRE(check, stride < kMost, argument, fmt::format("a last stride below {}", kMost), fmt::format("{}", stride));
    return static_cast<int>(stride);
}

}  // namespace gdn_cuda::layers
