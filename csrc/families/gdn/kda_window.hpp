// How many chunks of every head chunked_forward prepares at a time, where every channel of the key has a gate.
#pragma once

#include <algorithm>
#include <gdn_cuda/kernels/gdn/kda/record.cuh>

namespace gdn_cuda::gdn {

inline constexpr i64 kKdaMostRecords = 8192;  // for all heads together: 672 MB

// On an H200 (benchmarks/kda_windows.py, 88b7f3ed) the launches of a window have some 10 us that do not depend on its chunks:
// more than it costs to take records through memory. So all chunks are one window, if memory for the records is to be had; else
// two windows share it. Where blocks that own states leave half of the multiprocessors free, there are three windows, as they
// run beside blocks that prepare the next one.
inline int kda_window(i64 positions, i64 sequences, i64 heads, i64 row_tiles, int multiprocessors) {
    constexpr i64 kOverlapping = 3, kShortest = 32;  // chunks of a sequence
    const i64 three = ceil_div(positions, kOverlapping), owners = sequences * heads * row_tiles;
    if (2 * owners <= multiprocessors && three >= kShortest * sequences && 2 * three * heads <= kKdaMostRecords)
        return static_cast<int>(three);
    if (positions * heads <= kKdaMostRecords) return static_cast<int>(std::max<i64>(positions, 1));
    return static_cast<int>(std::max<i64>(kKdaMostRecords / 2 / heads, 1));
}

}  // namespace gdn_cuda::gdn
