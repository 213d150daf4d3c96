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

// The cut into at most `waves` waves of so many warps that ends first. A share takes the time of its tokens and of `overhead`
// more.
constexpr HyenaCut hyena_cut_by_waves(i64 rows, i64 tokens, int unit, int least, i64 wave, int waves, int overhead) {
    HyenaCut best{};
    i64 shortest = 0;
    for (int n = waves; n >= 1; --n) {
        const i64 wanted = std::max<i64>(1, n * wave / std::max<i64>(1, rows));
        const HyenaCut cut = hyena_cut(rows, tokens, unit, least, wanted * rows);
        const i64 time = ceil_div(rows * cut.segments, wave) * (cut.segment_tokens + overhead);
        // More waves have a shorter last one.
        if (n == waves || time + time / 16 < shortest) best = cut, shortest = time;
    }
    return best;
}

// A warp for each share.
inline Blocks hyena_blocks(i64 rows, int segments, int warps) {
    return {ceil_div(rows * segments, warps), 1, 1};
}

}  // namespace gdn_cuda::conv
