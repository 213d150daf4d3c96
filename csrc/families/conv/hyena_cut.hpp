// How many warps share a sequence in the kernels of Hyena operators.
#pragma once

#include <algorithm>
#include <gdn_cuda/kernels/common/types.cuh>

#include "../../kernels/grid.hpp"

namespace gdn_cuda::conv {

struct HyenaCut {
    int segments, segment_tokens;
};

// At least one segment, of whole multiples of `unit` tokens and at least `least`; as many as make `warps` of them all.
constexpr HyenaCut hyena_cut(i64 rows, i64 tokens, int unit, int least, i64 warps) {
    const i64 wanted = std::max<i64>(1, ceil_div(warps, std::max<i64>(1, rows)));
    const i64 units = ceil_div(std::max<i64>({1, ceil_div(tokens, wanted), least}), unit);
    return {static_cast<int>(std::max<i64>(1, ceil_div(tokens, units * unit))), static_cast<int>(units * unit)};
}

// A warp for each share.
inline Blocks hyena_blocks(i64 rows, int segments, int warps) {
    return {ceil_div(rows * segments, warps), 1, 1};
}

}  // namespace gdn_cuda::conv
