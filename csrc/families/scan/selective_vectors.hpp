// Which tensors of a selective scan consist of aligned 16-byte vectors.
#pragma once

#include <algorithm>
#include <cstdint>
#include <gdn_cuda/kernels/scan/selective/inputs.cuh>
#include <initializer_list>

#include "selective_prepare.hpp"

namespace gdn_cuda::scan {

// Whether vectors of eight contiguous elements, from multiples of eight on, are 16-byte aligned. Packed sequences begin at any
// token.
inline bool aligned(const void* data, std::initializer_list<i64> strides, int bytes) {
    bool all = reinterpret_cast<uintptr_t>(data) % 16 == 0;
    for (const i64 stride : strides) all &= stride * bytes % 16 == 0;
    return all;
}
inline bool has_vectors(const ChannelRows& x, int bytes, bool along_tokens, bool packed) {
    if (std::max(x.channel, x.token) * bytes > kMostStride) return false;
    if (along_tokens) return !packed && x.token == 1 && aligned(x.data, {x.batch, x.channel}, bytes);
    return x.channel == 1 && aligned(x.data, {x.batch, x.token}, bytes);
}
inline bool has_vectors(const Coefficients& x, bool packed) {
    const i64 number = x.pair == 0 ? 1 : 2, bytes = bytes_of(x.type);
    if (!x.varies || x.pair > 1 || x.token * bytes > kMostStride || x.n * bytes > kMostStride) return false;
    if (x.n == number) return aligned(x.data, {x.batch, x.group, x.token}, bytes);
    return !packed && x.token == number && aligned(x.data, {x.batch, x.group, x.n}, bytes);
}

// A dimension of size 1 has a stride of 0; kernels take the stride of contiguous elements.
inline Coefficients with_unit_stride(Coefficients x, int state_size) {
    const i64 number = x.pair == 0 ? 1 : 2;
    if (x.varies && x.n != number && x.token != number) (state_size == 1 ? x.n : x.token) = number;
    return x;
}

}  // namespace gdn_cuda::scan
