// CUTLASS's header of this name: setmaxnreg, which only checks its operand on a CPU.
#pragma once

#include <cstdint>

namespace cutlass::arch {

template <std::uint32_t kCount>
void warpgroup_reg_alloc() {
    static_assert(kCount >= 24 && kCount <= 256 && kCount % 8 == 0);
}
template <std::uint32_t kCount>
void warpgroup_reg_dealloc() {
    static_assert(kCount >= 24 && kCount <= 256 && kCount % 8 == 0);
}

}  // namespace cutlass::arch
