// A tensor map for the emulator's TMA: the arguments of cuTensorMapEncodeTiled (tensor_map.cpp), as large as the driver's.
#pragma once

#include <cstdint>

namespace emulator {

constexpr std::uint64_t kTensorMap = 0x70616d726f736e74;  // the mark of a tensor map

struct EmulatedTensorMap {
    std::uint64_t mark;
    char* data;
    std::int64_t strides[4];  // in bytes, of dimensions 1 and up
    std::uint64_t sizes[5];   // in elements
    std::uint16_t box[5];
    std::uint8_t rank, element_bytes;
    std::uint8_t swizzle;  // bytes of its rows: 16 (none), 32, 64 or 128
    std::uint8_t unused[27];
};
static_assert(sizeof(EmulatedTensorMap) == 128);

}  // namespace emulator
