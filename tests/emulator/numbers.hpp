// What elements of tensor cores are as numbers.
#pragma once

#include <bit>

namespace emulator {

inline double number_of_16_bits(unsigned short bits, bool is_bf16) {
    if (is_bf16) return std::bit_cast<float>(static_cast<unsigned>(bits) << 16);
    return static_cast<float>(std::bit_cast<_Float16>(bits));
}
// Of what tensor cores take as tf32, they ignore the low bits.
inline double number_of_tf32(unsigned bits) {
    return std::bit_cast<float>(bits & 0xffffe000u);
}

}  // namespace emulator
