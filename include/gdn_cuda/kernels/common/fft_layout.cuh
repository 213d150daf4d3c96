// Shared-memory layout of fft.cuh, for host and device.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda {

inline constexpr int kFftEach = 8;  // values per thread

// XOR-swizzled index of value `at`; also the size of a buffer for `at` values, which from 2^7 values on is no larger than
// without the swizzle. A pass accesses 16 values at strides 1 to 8, all in different banks.
GDN_HOST_DEVICE constexpr int fft_padded(int at) {
    return at ^ (at / kFftEach & 15);
}

// Twiddle table entries for passes over at most `size` values.
GDN_HOST_DEVICE constexpr int fft_twiddles(int size) {
    return size / 4;
}

}  // namespace gdn_cuda
