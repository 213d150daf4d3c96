// What conv/split_conv and conv/split_backward have in common on the host.
#pragma once

#include <array>
#include <gdn_cuda/kernels/conv/split_plan.cuh>
#include <string>

#include "../../kernels/spec.hpp"

namespace gdn_cuda::conv {

constexpr SplitConfig split_config(DType io) {
    return {.io = io, .threads = 128};
}
inline constexpr std::array kSplitConfigurations = {split_config(DType::bf16), split_config(DType::f16),
                                                    split_config(DType::f32)};

inline Blocks split_blocks(i64 rows, const SplitHeads& heads) {
    return {ceil_div(rows * heads.heads(), split_config(DType::f32).threads / 32), 1, 1};
}

}  // namespace gdn_cuda::conv
