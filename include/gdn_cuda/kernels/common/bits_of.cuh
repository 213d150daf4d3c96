// Unsigned integer type of kBytes bytes, for kernels that copy elements as bits.
#pragma once

namespace gdn_cuda {

template <int kBytes>
struct BitsOf;
template <>
struct BitsOf<2> {
    using type = unsigned short;
};
template <>
struct BitsOf<4> {
    using type = unsigned;
};

}  // namespace gdn_cuda
