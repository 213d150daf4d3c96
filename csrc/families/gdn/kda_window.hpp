// How many chunks of every head chunked_forward prepares at a time, where every channel of the key has a gate.
#pragma once

#include <algorithm>
#include <gdn_cuda/kernels/gdn/kda/record.cuh>

namespace gdn_cuda::gdn {

inline constexpr i64 kKdaMostRecords = 8192;  // for all heads together: 672 MB

// On an H200 (benchmarks/kda_windows.py, 7e071307) the launches of a window have some 10 us that do not depend on its chunks:
// more than it costs to take records through memory. So all chunks are one window, if memory for the records is to be had.
inline int kda_window(i64 positions, i64 heads) {
    return static_cast<int>(std::clamp<i64>(kKdaMostRecords / std::max<i64>(heads, 1), 1, std::max<i64>(positions, 1)));
}

}  // namespace gdn_cuda::gdn
