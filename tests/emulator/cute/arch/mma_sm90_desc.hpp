// The part of CUTLASS's header of this name that kernels use, on a CPU: descriptors of operands in shared memory, as the PTX
// manual defines them.
#pragma once

#include <cstdint>

namespace cute {

namespace SM90::GMMA {

enum class LayoutType : std::uint8_t { INTERLEAVE = 0, B128 = 1, B64 = 2, B32 = 3 };

}  // namespace SM90::GMMA

union GmmaDescriptor {
    std::uint64_t desc_;
    std::uint32_t reg32_[2];
    std::uint16_t reg16_[4];
    struct {
        std::uint16_t start_address_ : 14, : 2;  // in units of 16 bytes, as the next two
        std::uint16_t leading_byte_offset_ : 14, : 2;
        std::uint16_t stride_byte_offset_ : 14, : 2;
        std::uint8_t : 1, base_offset_ : 3, : 4;
        std::uint8_t : 6, layout_type_ : 2;
    } bitfield;

    constexpr GmmaDescriptor() : desc_(0) {}
    constexpr GmmaDescriptor(std::uint64_t whole) : desc_(whole) {}
    constexpr operator std::uint64_t() const { return desc_; }
};

}  // namespace cute
