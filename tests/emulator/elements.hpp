// Values of tensor-core operands.
#pragma once

#include <bit>

namespace emulator {

inline double value_of_16_bits(unsigned short bits, bool is_bf16) {
    if (is_bf16) return std::bit_cast<float>(static_cast<unsigned>(bits) << 16);
    return static_cast<float>(std::bit_cast<_Float16>(bits));
}
// Tensor cores ignore the low bits of a tf32 operand.
inline double value_of_tf32(unsigned bits) {
    return std::bit_cast<float>(bits & 0xffffe000u);
}

}  // namespace emulator
