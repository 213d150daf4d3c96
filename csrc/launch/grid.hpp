// Launch grids from 64-bit sizes.
#pragma once

#include <array>
#include <gdn_cuda/kernels/common/types.cuh>
#include <limits>
#include <stdexcept>
#include <string>

#include "../jit/text.hpp"

namespace gdn_cuda {

using Blocks = std::array<i64, 3>;
inline constexpr Blocks kMostBlocks = {std::numeric_limits<int>::max(), 65535, 65535};  // on every GPU

constexpr bool fits_grid(const Blocks& blocks) {
    for (int i = 0; i < 3; ++i)
        if (blocks[i] < 0 || blocks[i] > kMostBlocks[i]) return false;
    return true;
}

inline std::string grid_text(const Blocks& blocks) {
    return fmt::format("({}, {}, {}) blocks", blocks[0], blocks[1], blocks[2]);
}

inline std::array<unsigned, 3> grid_of(const char* family, const char* kernel, const Blocks& blocks) {
    if (!fits_grid(blocks))
        throw std::invalid_argument(
            fmt::format("{}/{}: grid: expected at most {}, got {}", family, kernel, grid_text(kMostBlocks), grid_text(blocks)));
    return {static_cast<unsigned>(blocks[0]), static_cast<unsigned>(blocks[1]), static_cast<unsigned>(blocks[2])};
}

}  // namespace gdn_cuda
