// How many warps split a sequence in the kernels of Hyena operators.
#pragma once

#include <algorithm>
#include <gdn_cuda/kernels/common/types.cuh>

#include "../../launch/grid.hpp"

namespace gdn_cuda::conv {

struct HyenaSplit {
    int segments, segment_tokens;
};

// Splits each of `rows` sequences into segments of at least `least` tokens, multiples of `unit`, so that there are up to
// `warps` of them in all.
constexpr HyenaSplit hyena_split(i64 rows, i64 tokens, int unit, int least, i64 warps) {
    const i64 wanted = std::max<i64>(1, ceil_div(warps, std::max<i64>(1, rows)));
    const i64 units = ceil_div(std::max<i64>({1, ceil_div(tokens, wanted), least}), unit);
    return {static_cast<int>(std::max<i64>(1, ceil_div(tokens, units * unit))), static_cast<int>(units * unit)};
}

// Splits sequences into at most `waves` waves of `wave` warps, so that the last one ends first. The time of a segment is its
// tokens plus `overhead`.
constexpr HyenaSplit hyena_split_by_waves(i64 rows, i64 tokens, int unit, int least, i64 wave, int waves, int overhead) {
    HyenaSplit best{};
    i64 shortest = 0;
    for (int n = waves; n >= 1; --n) {
        const i64 wanted = std::max<i64>(1, n * wave / std::max<i64>(1, rows));
        const HyenaSplit split = hyena_split(rows, tokens, unit, least, wanted * rows);
        const i64 time = ceil_div(rows * split.segments, wave) * (split.segment_tokens + overhead);
        // More waves have a shorter last one.
        if (n == waves || time + time / 16 < shortest) best = split, shortest = time;
    }
    return best;
}

// One warp per segment.
inline Blocks hyena_blocks(i64 rows, int segments, int warps) {
    return {ceil_div(rows * segments, warps), 1, 1};
}

}  // namespace gdn_cuda::conv
