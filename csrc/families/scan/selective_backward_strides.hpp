// Checks the strides of scan/selective_backward's tensors.
#pragma once

#include <algorithm>

#include "selective_prepare.hpp"

namespace gdn_cuda::scan {

// The kernel has strides in bytes, as 32-bit integers.
inline void require_strides(const PreparedSelective& prepared, const SelectiveCotangents& cotangents) {
    const Checks check{"selective_scan_backward"};
    constexpr i64 kMost = (i64{1} << 32) - 1;
    const auto require = [&](const char* argument, i64 stride, int bytes) {
        GDN_REQUIRE(check, stride * bytes <= kMost, argument, "strides below 4 GiB", fmt::format("{} elements", stride));
    };
    const SelectiveInputs& in = prepared.inputs;
    const auto rows = [&](const char* argument, const ChannelRows& x) {
        require(argument, std::max(x.channel, x.token), bytes_of(prepared.io));
    };
    rows("u", in.u), rows("delta", in.delta), rows("z", in.z), rows("delta_a", in.delta_a), rows("grad_out", cotangents.out);
    const auto coefficients = [&](const char* argument, const Coefficients& x) {
        if (x.varies) require(argument, std::max({x.token, x.n, x.pair}), bytes_of(x.type));
    };
    coefficients("B", in.B), coefficients("C", in.C);
}

}  // namespace gdn_cuda::scan
