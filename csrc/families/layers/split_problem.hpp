// Host side of both layers/split_conv and layers/split_backward.
#pragma once

#include <array>
#include <gdn_cuda/kernels/layers/split/plan.cuh>
#include <string>

#include "../../launch/spec.hpp"

namespace gdn_cuda::layers {

constexpr SplitConfig split_config(DType io) {
    return {.io = io, .threads = 128};
}
inline constexpr std::array kSplitConfigurations = {split_config(DType::bf16), split_config(DType::f16),
                                                    split_config(DType::f32)};

inline Blocks split_blocks(i64 rows, const SplitHeads& heads) {
    return {ceil_div(rows * heads.heads(), split_config(DType::f32).threads / 32), 1, 1};
}

// Grid of a kernel: the convolution's `blocks`, then those of the gates.
inline Blocks with_gates(SplitArgs& args, Blocks blocks, int threads) {
    args.gates.first_block = static_cast<unsigned>(blocks[0]);
    blocks[0] += ceil_div(args.gate_count(), threads * SplitGates::per_thread);
    return blocks;
}

}  // namespace gdn_cuda::layers
