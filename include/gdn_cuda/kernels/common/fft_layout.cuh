// Shared-memory layout of fft.cuh, for host and device.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda {

inline constexpr int kFftEach = 8;  // numbers per thread

// XOR-swizzled index of number `at`; also the room that many numbers take, no more than unswizzled from 2^7 on. Passes access
// 16 numbers at strides 1 to 8, all in different banks.
GDN_HOST_DEVICE constexpr int fft_padded(int at) {
    return at ^ (at / kFftEach & 15);
}

// Twiddle table entries for passes over at most this many numbers.
GDN_HOST_DEVICE constexpr int fft_twiddles(int size) {
    return size / 4;
}

}  // namespace gdn_cuda
