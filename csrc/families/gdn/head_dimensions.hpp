// Head dimensions: the longest, and those of keys that kernels are compiled for.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace gdn_cuda::gdn {

constexpr int64_t kMaxHeadDim = 256;

// Key dimensions with an exact kernel; others run masked in the next larger of kMaskedHeadK.
inline constexpr std::array kExactHeadK = {64, 96, 128, 192, 256};
inline constexpr std::array kMaskedHeadK = {64, 128, 256};
constexpr bool has_exact_kernel(int dk) {
    return std::ranges::find(kExactHeadK, dk) != kExactHeadK.end();
}
constexpr int masked_head_k(int dk) {
    for (const int head_k : kMaskedHeadK)
        if (dk <= head_k) return head_k;
    return 0;  // operators reject dk above kMaxHeadDim
}

}  // namespace gdn_cuda::gdn
