// A tensor map as the emulator's TMA reads it: what the driver is told of a tensor (tensor_map.cpp), in as many bytes as its
// own.
#pragma once

#include <cstdint>

namespace emulator {

constexpr std::uint64_t kTensorMap = 0x70616d726f736e74;  // marks one

struct EmulatedTensorMap {
    std::uint64_t mark;
    char* data;
    std::int64_t strides[4];  // in bytes, of dimensions 1 and up
    std::uint64_t sizes[5];   // in elements
    std::uint16_t box[5];
    std::uint8_t rank, element_bytes;
    std::uint8_t swizzle;  // rows of so many bytes: 16 (none), 32, 64, 128
    std::uint8_t unused[27];
};
static_assert(sizeof(EmulatedTensorMap) == 128);

}  // namespace emulator
