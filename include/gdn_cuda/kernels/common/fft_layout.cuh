// Where fft.cuh keeps numbers in shared memory, for host and device.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda {

inline constexpr int kFftEach = 8;  // numbers a thread

// Where number `at` is, and what as many numbers take. Passes read and write 16 numbers side by side, or eight apart, or in
// between: all meet different banks, and no memory is lost from 2^7 numbers on.
GDN_HOST_DEVICE constexpr int fft_padded(int at) {
    return at ^ (at / kFftEach & 15);
}

// Entries of a table of twiddles for passes over at most so many numbers.
GDN_HOST_DEVICE constexpr int fft_twiddles(int size) {
    return size / 4;
}

}  // namespace gdn_cuda
